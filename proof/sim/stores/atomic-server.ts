// A server in the shape of Redis: tables of texts, and scripts that run one at a time. A script that throws after its first write is not
// rolled back, and a failover can lose the latest scripts. Nothing here knows of jobs.
import type { Clock } from "../../../src/job/time.ts";

/** What a script sees of the server. */
export interface Keyspace {
  /** The server's clock, the same throughout one script. */
  readonly now: number;
  /** Which start of the server this is. */
  readonly run: string;
  /** Whether this script has written something. */
  readonly wrote: boolean;
  get(table: string, field: string): string | null;
  /** In no particular order. */
  fields(table: string): string[];
  set(table: string, field: string, text: string): void;
  delete(table: string, field: string): void;
}

interface Write {
  readonly table: string;
  readonly field: string;
  readonly before: string | null;
}

/** How many scripts a failover can lose at the most. */
const MOST_LOST = 10_000;

export class AtomicServer {
  readonly #clock: Pick<Clock, "now">;
  readonly #tables = new Map<string, Map<string, string>>();
  /** What each of the latest scripts has overwritten; those that wrote nothing are not in it. */
  readonly #log: (readonly Write[])[] = [];
  readonly #torn: string[] = [];
  readonly #listeners = new Set<{ readonly of: object; readonly listener: () => void }>();
  #starts = 1;
  #isBusy = false;

  constructor(clock: Pick<Clock, "now">) {
    this.#clock = clock;
  }

  get run(): string {
    return `run ${this.#starts}`;
  }

  /** How many scripts can be lost now. */
  get scripts(): number {
    return this.#log.length;
  }

  /** Scripts that threw after their first write. What they wrote has stayed. */
  get torn(): readonly string[] {
    return this.#torn;
  }

  /** One atomic call. Texts go in and a text comes out, so that nothing is shared with the caller. */
  eval(name: string, body: (keys: Keyspace) => string): string {
    if (this.#isBusy) throw new Error(`script ${name} was called within another script`);
    const writes: Write[] = [];
    this.#isBusy = true;
    try {
      return body(this.#keyspace(writes));
    } catch (thrown) {
      if (writes.length > 0) this.#torn.push(name);
      throw thrown;
    } finally {
      this.#isBusy = false;
      if (writes.length > 0) this.#log.push(writes);
      if (this.#log.length > MOST_LOST) this.#log.shift();
    }
  }

  #keyspace(writes: Write[]): Keyspace {
    const read = (table: string, field: string): string | null => this.#tables.get(table)?.get(field) ?? null;
    return {
      now: Math.floor(this.#clock.now()),
      run: this.run,
      get wrote() {
        return writes.length > 0;
      },
      get: read,
      fields: (table) => [...(this.#tables.get(table)?.keys() ?? [])],
      set: (table, field, text) => {
        writes.push({ table, field, before: read(table, field) });
        this.#put(table, field, text);
      },
      delete: (table, field) => {
        const before = read(table, field);
        if (before === null) return;
        writes.push({ table, field, before });
        this.#put(table, field, null);
      },
    };
  }

  #put(table: string, field: string, text: string | null): void {
    const fields = this.#tables.get(table) ?? new Map<string, string>();
    if (text === null) fields.delete(field);
    else fields.set(field, text);
    if (fields.size > 0) this.#tables.set(table, fields);
    else this.#tables.delete(table);
  }

  /** A failover, or a restart after a lost second: the state is that before the last `count` scripts, and the server's run is another one. */
  loseSuffix(count: number): void {
    if (!(count <= this.#log.length)) throw new Error(`only ${this.#log.length} scripts can be lost, not ${count}`);
    for (const writes of this.#log.splice(this.#log.length - count).toReversed())
      for (const { table, field, before } of writes.toReversed()) this.#put(table, field, before);
    this.#starts++;
  }

  /** The tables as they are, to be compared. */
  dump(): Readonly<Record<string, Readonly<Record<string, string>>>> {
    const tables = [...this.#tables].toSorted(([a], [b]) => (a < b ? -1 : 1));
    return Object.fromEntries(
      tables.map(([name, fields]) => [name, Object.fromEntries([...fields].toSorted(([a], [b]) => (a < b ? -1 : 1)))]),
    );
  }

  /** Wakes the listeners of all other connections. */
  publish(from: object): void {
    for (const { of, listener } of this.#listeners) if (of !== from) listener();
  }

  subscribe(of: object, listener: () => void): () => void {
    const entry = { of, listener };
    this.#listeners.add(entry);
    return () => void this.#listeners.delete(entry);
  }
}
