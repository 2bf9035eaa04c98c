"""The only room that speaks HTTP to Kubernetes.

Requests go through one `KubeClient` (deadlines, retries, typed errors, the fence in front of
every write); `reads` and `writes` name the requests Drumline makes; `Informer` keeps the caches;
`LeaderElector` holds the lease that opens the fence; `EventRecorder` writes events for users.
Objects enter as bytes and leave as the small frozen views of `views`: no manifest is kept.
"""
