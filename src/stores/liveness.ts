// Worker rows, and the liveness port. Three signals tell whether a worker is alive: what this host's kernel reports
// about its process, its liveness lock, and its heartbeat. Only the kernel proves a death: a process that is gone, or a
// lock that the kernel released. A session that a server no longer sees, or silence, only ends contact with the worker
// (failure-detector.ts, losses.ts).

/** The state of a worker's row. live: it claims. recovering: its jobs are being taken. gone, stopped: finished. */
export type WorkerState = "live" | "recovering" | "gone" | "stopped";

/** Where a worker's liveness lock is, and what makes it a proof. */
interface LockEvidence {
  /**
   * The store's own name for the lock; null: this worker has no lock, and only its heartbeats show that it is alive.
   */
  readonly name: string | null;
  /**
   * What must still be the same for the lock to prove anything (an inode, a server run), and what identifies its
   * sessions, if it has any.
   */
  readonly identity: string | null;
}

/** What this host's kernel reports about a process. unknown: another host, another namespace, or hidden. */
export type ProcessState = "gone" | "alive" | "unknown";

/** Asks the kernel. Cheap enough for hundreds of workers four times a second. */
export type ProcessCheck = (of: ProcessKey) => ProcessState;

/** As `ProcessCheck`, plus what is known by the worker's id: the exit that its parent reported. */
export type WorkerCheck = (worker: WorkerRow) => ProcessState;

/** A worker as it registers. The id is unique per boot: host, boot, pid, start time and a random part. */
export interface WorkerRecord extends ProcessKey {
  /** The worker's id. */
  readonly id: string;
  /** The name of its host. */
  readonly host: string;
  /**
   * The id this process worked under before its work was taken; null: this is its first. Resolves that
   * loss.
   */
  readonly predecessor: string | null;
  /** The version of Outlive that it runs. */
  readonly version: string;
  /** Its lease, in ms. */
  readonly leaseMs: number;
  /** How many jobs it runs at once. */
  readonly concurrency: number;
  /** The names of the kinds that it runs. */
  readonly kinds: readonly string[];
  /** Its liveness lock. */
  readonly lock: LockEvidence;
}

/** A worker as the store knows it. */
export interface WorkerRow extends WorkerRecord {
  /** Whether it runs, has stopped or is dead. */
  readonly state: WorkerState;
  /** When it started, in milliseconds since 1970. */
  readonly startedAt: number;
  /** When its last heartbeat was written, in milliseconds since 1970. */
  readonly heartbeatAt: number;
  /** Grows with every heartbeat. A worker is silent while this number stands still. */
  readonly beats: number;
  /** How late its event loop was at the last heartbeat, in milliseconds. */
  readonly loopLagMs: number;
  /** How many jobs it held at the last heartbeat. */
  readonly heldCount: number;
  /** The ids of the first few, if requested. */
  readonly heldIds?: readonly string[];
  /** What it wrote about its own end, if it could; null otherwise. */
  readonly lastWord: string | null;
  /** True: the row came back with a backup. Its worker can't write any more, whether or not its process is alive. */
  readonly restored?: true;
}

/** gone: the kernel proves that the process has ended. lost: its lock was missing throughout `contact`. silent: no heartbeat for one lease. */
export type HowLost = "gone" | "lost" | "silent";

/**
 * Only a proof is counted against the jobs at once. Without a proof, contact is lost, and what happened to the worker
 * is found out later.
 */
export function isProof(how: HowLost): boolean {
  return how === "gone";
}

/** How a death, or a loss of contact, was detected. */
export interface Death {
  /** How it was lost. */
  readonly how: HowLost;
  /** When the watcher last saw it alive, in milliseconds since 1970; null: never. */
  readonly lastSeenAliveAt: number | null;
  /** When the loss was noticed, in milliseconds since 1970. */
  readonly detectedAt: number;
  /** What else is known: an exit code, a signal, the worker's last word. */
  readonly evidence: string | null;
}

/**
 * held: the worker is alive. free: the kernel released the lock, so its process is dead. missing: a server has not seen
 * the lock throughout `contact`.
 */
export type Probe = "held" | "free" | "missing" | "unknown";

export interface Liveness {
  /**
   * Takes this process's own lock for `workerId`; the row that names it is written only afterwards. Dropping the lock
   * removes it only if no row shows a live worker: a lock that is left behind is the proof of a death.
   */
  take(
    workerId: string,
  ): Promise<{ readonly evidence: LockEvidence; readonly drop: (remove: boolean) => Promise<void> }>;
  /**
   * unknown: the lock proves nothing (none was taken, another inode, another boot, missing for less than `contact`),
   * and the lease decides.
   */
  probe(worker: WorkerRow): Promise<Probe>;
  /** As `probe`, for many at once, where that is cheaper. */
  probeAll?(workers: readonly WorkerRow[]): Promise<readonly Probe[]>;
  /**
   * Removes what a dead or stopped worker left behind, such as a file that is provably free. Returns whether it removed
   * something or, where a server does the removal, that nothing is left.
   */
  clean(worker: WorkerRow): Promise<boolean>;
  /**
   * Before a recovery: ends what the dead worker may still hold in the store, for example a transaction with its locks.
   */
  evict?(worker: WorkerRow): Promise<unknown>;
  /** True: workers of several machines share this store, and a worker under another kernel is not a mistake. */
  readonly manyHosts?: boolean;
  /**
   * Where one process checks all workers: whether that is this one. Null: no process can be elected, so each checks its
   * neighbours. `seldom`: it has nothing to find that others would not find as soon, so it may ask and say so less often.
   */
  leads?(seldom?: boolean): Promise<boolean | null>;
  /** For how many more ms no worker is declared dead because the store was unavailable a moment ago; 0: no wait. */
  holdMs?(): number;
  /**
   * Whether a lock is missing now, for less than `contact`. It is then checked again soon, whichever process
   * checks all workers.
   */
  isWaitingForContact?(): boolean;
}

/**
 * What tells a worker that another process of its host may have ended. Only a hint, which may be wrong or not come: it makes the worker look for a proof at
 * once.
 */
export interface Neighbours {
  /** Workers as they were last read. From now on the ends of some of them are noticed. */
  know(workers: readonly WorkerRow[]): void;
  /** Called with the id of a worker whose process may have ended. */
  onEnded(listener: (worker: string) => void): void;
  close(): void;
}

/** How long each worker may be silent, how often it sends heartbeats, and how often the others check. */
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

/** What identifies a process. */
export interface ProcessKey {
  /** The id of its host's boot. */
  readonly bootId: string;
  /** The PID namespace to which `pid` belongs; null: not known, so the pid proves nothing. */
  readonly namespace: string | null;
  /** Its PID. */
  readonly pid: number;
  /** When the kernel started the process, in clock ticks since the boot; null: not known, or not comparable. */
  readonly startTicks: string | null;
}

/** For reports: "pid 4242, start ticks 63578, pid:[4026531836]". Unknown parts are omitted. */
export function describeProcess({ pid, startTicks, namespace }: Omit<ProcessKey, "bootId">): string {
  const start = startTicks === null ? [] : [`start ticks ${startTicks}`];
  return [`pid ${pid}`, ...start, ...(namespace === null ? [] : [namespace])].join(", ");
}

// What two boot ids prove about each other. Where the kernel has its own id for this boot, two different ids are two
// kernels. A process that can't read that id derives one from the machine. Such an id equals that of neighbours with
// the same restriction, and proves nothing about the others.

const MACHINE = "machine-";

/** The id of a boot that is identified by its machine only. */
export function machineBootId(machine: string): string {
  return MACHINE + machine;
}

/** False: the id does not come from the kernel. */
export function isExactBootId(bootId: string): boolean {
  return !bootId.startsWith(MACHINE);
}

/** True: certainly two kernels. False also means that it can't be known. */
export function differentKernels(a: string, b: string): boolean {
  return a !== b && isExactBootId(a) && isExactBootId(b);
}
