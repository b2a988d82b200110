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
