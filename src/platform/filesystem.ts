// Which file systems are shared over a network or may be: neither locks, nor fsync, nor renames hold there as on a local disk.

/** By the magic number that statfs returns on Linux. */
const NETWORK_FILESYSTEMS: Readonly<Record<number, string>> = {
  0x6969: "NFS",
  0x517b: "SMB",
  0xff534d42: "CIFS",
  0xfe534d42: "SMB2",
  0x01021997: "9P",
  0x5346414f: "AFS",
  0x00c36400: "Ceph",
  0x0bd00bd0: "Lustre",
  0x47504653: "GPFS",
  // Also virtiofs, sshfs, object stores. FUSE in front of a local disk is safe, but can't be told apart from those.
  0x65735546: "FUSE",
};

/**
 * The name of the network file system that a path is on, or undefined. `magic` is a parameter so that it can be tested.
 */
export function networkFilesystem(magic: number): string | undefined {
  return NETWORK_FILESYSTEMS[magic];
}
