// What two boot ids say about each other. Where the kernel has an id of its own for this boot, two different ids are two
// kernels. Where a process can't read one, its id is made from the machine: such an id equals that of its neighbours with
// the same limits, and proves nothing about the others.

const MACHINE = "machine-";

/** The id of a boot that is known by its machine only. */
export function machineBootId(machine: string): string {
  return MACHINE + machine;
}

/** False: the kernel itself did not name this boot. */
export function isExactBootId(bootId: string): boolean {
  return !bootId.startsWith(MACHINE);
}

/** True: certainly two kernels. False also means that it can't be known. */
export function differentKernels(a: string, b: string): boolean {
  return a !== b && isExactBootId(a) && isExactBootId(b);
}
