# The base of the throwaway cluster's images, for machines where no registry is asked: a Debian
# root filesystem with Python 3.11, made by debootstrap (tools/cluster/rootfs.py).
# It sleeps by default, which is all that a pod's sandbox container has to do.
FROM scratch
ADD rootfs.tar /
CMD ["sleep", "infinity"]
