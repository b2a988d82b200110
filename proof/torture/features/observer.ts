// An observer that neither the engine nor a handler can mislead: a trigger notes each job that begins to run or stops to, in the transaction in
// which it does. What a process did right before it was killed is there, and what it only meant to do is not.
import type { Database } from "./database.ts";

export interface Sighting {
  readonly job: string;
  readonly kind: string;
  readonly key: string;
  readonly fence: number;
  /** Whether it runs from here on. */
  readonly runs: boolean;
  /** By the store's clock: the latest start of the job. */
  readonly startedAt: number;
}

export const RUNNING = 1;

export class Observer {
  readonly #db: Database;

  private constructor(db: Database) {
    this.#db = db;
  }

  /** Watches the jobs of these kinds from now on, whose inputs have a `key`. */
  static async watch(db: Database, kinds: readonly string[]): Promise<Observer> {
    const number = db.store === "sqlite" ? "INTEGER PRIMARY KEY" : "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY";
    await db.run(
      `CREATE TABLE rig_sightings (ord ${number}, job text, kind text, key text, fence integer, runs integer, started_at bigint)`,
    );
    await db.trigger({
      on: "jobs",
      when: "after update of state",
      if: `OLD.state <> NEW.state AND (OLD.state = ${RUNNING} OR NEW.state = ${RUNNING})`,
      sql: `INSERT INTO rig_sightings (job, kind, key, fence, runs, started_at)
        SELECT NEW.id, k.name, ${db.member("NEW.input", "key")}, NEW.fence, CASE WHEN NEW.state = ${RUNNING} THEN 1 ELSE 0 END, NEW.started_at
        FROM ${db.table("kinds")} k WHERE k.id = NEW.kind AND k.name IN (${kinds.map((kind) => `'${kind}'`).join()})`,
    });
    return new Observer(db);
  }

  /** In the order in which they happened. */
  async sightings(): Promise<Sighting[]> {
    const rows = await this.#db.rows<
      Omit<Sighting, "startedAt" | "runs"> & { runs: number; started_at: number | string }
    >("SELECT job, kind, key, fence, runs, started_at FROM rig_sightings ORDER BY ord");
    return rows.map(({ runs, started_at, ...seen }) => ({ ...seen, runs: runs === 1, startedAt: Number(started_at) }));
  }
}
