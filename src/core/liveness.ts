// Who works, and the liveness port: the proof that the kernel or the server gives of a process's life and death. The lock
// proves death; silence is judged from heartbeats (lookout.ts). A pid proves nothing.

/** What is known of a worker's row. live: claims. recovering: its jobs are being taken. gone, stopped: over. */
export type WorkerState = "live" | "recovering" | "gone" | "stopped";

/** Where a worker's liveness lock is and what makes it provable. */
export interface LockEvidence {
  /** The store's own name of the lock; null: this worker has none, only heartbeats speak for it. */
  readonly name: string | null;
  /** What must still be the same for the lock to prove anything (an inode, a server run). */
  readonly identity: string | null;
}

/** A worker as it registers. The id is unique per boot: host, boot, pid, start time and a random part. */
export interface WorkerRecord {
  readonly id: string;
  readonly host: string;
  readonly bootId: string;
  readonly pid: number;
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
  readonly lastWord: string | null;
  /** True: the row came back with a backup. Its worker can't write any more, whether its process lives or not. */
  readonly restored?: true;
}

/** How a death became known. */
export interface Death {
  /** gone: the lock is free. silent: no heartbeat for one lease. */
  readonly how: "gone" | "silent";
  /** Store clock in ms; null: the watcher never saw it alive. */
  readonly lastSeenAliveAt: number | null;
  readonly detectedAt: number;
  /** What else is known: an exit code, a signal, the worker's last word. */
  readonly evidence: string | null;
}

export type Probe = "held" | "free" | "unknown";

export interface Liveness {
  /** Takes this process's own lock for `workerId`; the row that names it is written only afterwards. Dropping it removes it only if no row speaks of a live worker: what is left is the proof of a death. */
  take(
    workerId: string,
  ): Promise<{ readonly evidence: LockEvidence; readonly drop: (remove: boolean) => Promise<void> }>;
  /** held: it lives. free: it is dead. unknown: nothing is proved (no lock, another inode, another boot): the lease decides. */
  probe(worker: WorkerRow): Promise<Probe>;
  /** As `probe`, of many at once, where that is cheaper. */
  probeAll?(workers: readonly WorkerRow[]): Promise<readonly Probe[]>;
  /** Removes what a dead or stopped worker left behind: a file that is provably free, a session that still speaks for it. Answers whether something was removed. */
  clean(worker: WorkerRow): Promise<boolean>;
  /** Before a recovery: ends what the dead may still hold in the store, a transaction with its locks for instance. */
  evict?(worker: WorkerRow): Promise<unknown>;
  /** True: the workers of several machines belong together, and one under another kernel is no mistake. */
  readonly manyHosts?: boolean;
  /** Where one process looks for all: whether that is this one. Null: nobody can be elected, each looks at its neighbours. */
  leads?(): Promise<boolean | null>;
  /** How much longer nobody is called dead because the store was away a moment ago, in ms; 0: not at all. */
  holdMs?(): number;
}

/** How long each worker may be silent, how often it speaks, and how often the others look. */
export interface LivenessTimes {
  readonly heartbeatMs: number;
  readonly leaseMs: number;
  readonly sweepMs: number;
  readonly probeMs: number;
}
