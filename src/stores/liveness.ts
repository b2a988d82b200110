// Who works, and the liveness port. Three signals speak of a worker: what this host's kernel says of its process, its liveness
// lock, and its heartbeat. Only the kernel proves a death: a process that is gone, or a lock that the kernel released. A session
// that a server does not see any more, or silence, only ends contact with the worker (failure-detector.ts, losses.ts).

/** What is known of a worker's row. live: claims. recovering: its jobs are being taken. gone, stopped: over. */
export type WorkerState = "live" | "recovering" | "gone" | "stopped";

/** Where a worker's liveness lock is and what makes it provable. */
interface LockEvidence {
  /** The store's own name of the lock; null: this worker has none, only heartbeats speak for it. */
  readonly name: string | null;
  /** What must still be the same for the lock to prove anything (an inode, a server run), and by what its sessions are known, if it has any. */
  readonly identity: string | null;
}

/** What this host's kernel says of a process. unknown: another host, another namespace, or hidden. */
export type ProcessState = "gone" | "alive" | "unknown";

/** Asks the kernel. Cheap enough for hundreds of workers four times a second. */
export type ProcessCheck = (of: ProcessKey) => ProcessState;

/** As `ProcessCheck`, together with what is known by the worker's id: the exit that its parent reported. */
export type WorkerCheck = (worker: WorkerRow) => ProcessState;

/** A worker as it registers. The id is unique per boot: host, boot, pid, start time and a random part. */
export interface WorkerRecord extends ProcessKey {
  readonly id: string;
  readonly host: string;
  /** The id under which this process worked before its work was taken; null: this is its first. Resolves that loss (losses.ts). */
  readonly predecessor: string | null;
  readonly version: string;
  readonly leaseMs: number;
  readonly concurrency: number;
  readonly kinds: readonly string[];
  readonly lock: LockEvidence;
}

export interface WorkerRow extends WorkerRecord {
  readonly state: WorkerState;
  readonly startedAt: number;
  readonly heartbeatAt: number;
  /** Grows with every heartbeat. Silence is this number standing still. */
  readonly beats: number;
  readonly loopLagMs: number;
  readonly heldCount: number;
  /** The first of them, if they were asked for. */
  readonly heldIds?: readonly string[];
  readonly lastWord: string | null;
  /** True: the row came back with a backup. Its worker can't write any more, whether its process lives or not. */
  readonly restored?: true;
}

/** gone: the kernel proves that the process has ended. lost: its lock was missing throughout `contact`. silent: no heartbeat for one lease. */
export type HowLost = "gone" | "lost" | "silent";

/** Only a proof is counted against the jobs at once. Without one, contact is lost, and what happened to the worker is found out later. */
export function isProof(how: HowLost): boolean {
  return how === "gone";
}

/** How a death, or the loss of contact, became known. */
export interface Death {
  readonly how: HowLost;
  /** Store clock in ms; null: the watcher never saw it alive. */
  readonly lastSeenAliveAt: number | null;
  readonly detectedAt: number;
  /** What else is known: an exit code, a signal, the worker's last word. */
  readonly evidence: string | null;
}

/** held: it lives. free: the kernel released the lock, its process is dead. missing: a server does not see the lock, throughout `contact`. */
export type Probe = "held" | "free" | "missing" | "unknown";

export interface Liveness {
  /** Takes this process's own lock for `workerId`; the row that names it is written only afterwards. Dropping it removes it only if no row speaks of a live worker: what is left is the proof of a death. */
  take(
    workerId: string,
  ): Promise<{ readonly evidence: LockEvidence; readonly drop: (remove: boolean) => Promise<void> }>;
  /** unknown: the lock says nothing (none was taken, another inode, another boot, missing for less than `contact`): the lease decides. */
  probe(worker: WorkerRow): Promise<Probe>;
  /** As `probe`, of many at once, where that is cheaper. */
  probeAll?(workers: readonly WorkerRow[]): Promise<readonly Probe[]>;
  /** Removes what a dead or stopped worker left behind, such as a file that is provably free. Returns whether something was removed, or, where a server removes it, that nothing is left. */
  clean(worker: WorkerRow): Promise<boolean>;
  /** Before a recovery: ends what the dead may still hold in the store, a transaction with its locks for instance. */
  evict?(worker: WorkerRow): Promise<unknown>;
  /** True: the workers of several machines belong together, and one under another kernel is no mistake. */
  readonly manyHosts?: boolean;
  /** Where one process looks for all: whether that is this one. Null: nobody can be elected, each looks at its neighbours. */
  leads?(): Promise<boolean | null>;
  /** How much longer nobody is called dead because the store was away a moment ago, in ms; 0: not at all. */
  holdMs?(): number;
  /** Whether a lock is missing just now, for less than `contact`: then it is checked again soon, whoever looks for all. */
  isWaitingForContact?(): boolean;
}

/** How long each worker may be silent, how often it speaks, and how often the others look. */
export interface LivenessTimes {
  readonly heartbeatMs: number;
  readonly leaseMs: number;
  readonly sweepMs: number;
  readonly probeMs: number;
  /** How long a worker's lock may be missing on the server before contact with it counts as lost. */
  readonly contactMs: number;
}

// What identifies one process among all processes of one boot. A pid alone does not: it is reused, and it names another process in every
// PID namespace.

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
