"""Jobs, JobSets, pods and others that wait for quota: admission, suspension, eviction."""
