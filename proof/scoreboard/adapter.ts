// What every contender of the scoreboard does for the experiments: one file per contender in peers/ behind this interface. Types
// only, so that a contender's program loads nothing but itself.

/**
 * default: as installed. fastest: short times for what happens after a death: the least that its options allow, or, where they name
 * none or it would be a trap, a floor of ours, which its row of the settings (contenders.ts) gives with the reason. throughput: as its
 * documentation says for many small jobs.
 */
export type Mode = "default" | "fastest" | "throughput";

export interface Place {
  /** A PostgreSQL or Redis address, or the path of a SQLite file. */
  readonly address: string;
}

/** What a job is to do; `acts` in program.ts does it, the same for every contender. */
export interface Input {
  readonly n: number;
  readonly act: "noop" | "held" | "wait" | "block" | "poison";
  readonly ms?: number;
}

export interface Task {
  readonly input: Input;
  /** Keeps a word with the job while it runs (progress); null if there is no such thing. */
  readonly note: ((word: string) => Promise<unknown>) | null;
}

/** What the contender's own store says of a job. */
export interface Found {
  readonly state: "waiting" | "running" | "done" | "failed" | "missing";
  readonly note: string | null;
  /** Its own words: state and counters. */
  readonly detail: string;
}

export interface Session {
  /** Resolves when the contender says that the job is added. */
  add(input: Input): Promise<string>;
  addMany(inputs: readonly Input[]): Promise<unknown>;
  work(concurrency: number, handler: (task: Task) => Promise<void>): Promise<unknown>;
  /** The stop that its documentation shows for SIGTERM; undefined: it handles the signal itself. */
  readonly stop: (() => Promise<unknown>) | undefined;
  find(id: string): Promise<Found>;
  /** How many jobs its store says have not ended. */
  unfinished(): Promise<number>;
  /** For a contender whose lease is hard-coded in hours: makes the store believe that it has passed. */
  readonly pretendLeaseIsOver?: () => Promise<unknown>;
}

export type Open = (place: Place, mode: Mode) => Promise<Session>;
