// What identifies one process among all processes of one boot. A pid alone does not: it is reused, and it names another process
// in every PID namespace.

export interface ProcessKey {
  readonly bootId: string;
  /** The PID namespace in which `pid` has its meaning; null: not known, so the pid proves nothing. */
  readonly namespace: string | null;
  readonly pid: number;
  /** When the kernel started it, in clock ticks since the boot; null: not known, or not comparable. */
  readonly startTicks: string | null;
}

/** For reports: "pid 4242, start ticks 63578, pid:[4026531836]". What is not known is left out. */
export function describeProcess({ pid, startTicks, namespace }: Omit<ProcessKey, "bootId">): string {
  const start = startTicks === null ? [] : [`start ticks ${startTicks}`];
  return [`pid ${pid}`, ...start, ...(namespace === null ? [] : [namespace])].join(", ");
}

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
