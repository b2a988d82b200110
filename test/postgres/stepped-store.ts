// A store on PostgreSQL whose statements go one at a time: each waits until the test lets it go, and the test learns whether the verb came to its next statement,
// ended, or waits for a lock of another session. So two verbs can be run with every statement of one between any two of the other. Wake-ups of other processes are
// no statements of a verb and go at once: one that came while the verb waited took its place, and neither of the two went any further.
import assert from "node:assert/strict";
import { setTimeout as delay } from "node:timers/promises";
import type pg from "pg";
import { idSource } from "../../src/job/enqueue.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import type { Store } from "../../src/stores/port.ts";
import { Connection } from "../../src/stores/postgres/connection.ts";
import type { Session } from "../../src/stores/postgres/statements.ts";
import { postgresStore } from "../../src/stores/postgres/store.ts";
import { WakeupChannel } from "../../src/stores/postgres/wakeup.ts";
import type { FreshSchema } from "../support/postgres.ts";

/** Whether a statement waits for a lock of its database. A commit with a wake-up waits for others of the whole server, which is not meant. */
export async function isLocked(look: pg.Client): Promise<boolean> {
  const { rows } = await look.query(
    `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event NOT IN ('object', 'extend')`,
  );
  return rows.length > 0;
}

export type Came = "to a statement" | "to its end" | "to a lock";

export class SteppedStore {
  readonly store: Store;
  readonly #isLocked: () => Promise<boolean>;
  #isStepped = false;
  #hasEnded = true;
  #go: (() => void) | null = null;
  #running: Promise<unknown> = Promise.resolve();

  /** `isLocked`: whether a statement waits for a lock. All others of the test stand still while it is asked. */
  static async open(
    place: Pick<FreshSchema, "url" | "schema">,
    isLocked: () => Promise<boolean>,
  ): Promise<SteppedStore> {
    return new SteppedStore(await Connection.open(place), isLocked);
  }

  private constructor(connection: Connection, isLocked: () => Promise<boolean>) {
    this.#isLocked = isLocked;
    this.store = postgresStore({
      connection: this.#stepped(connection),
      clock: systemClock,
      newId: idSource(systemClock, systemRandom),
      wakeup: new WakeupChannel(connection, systemClock),
    });
  }

  /** Begins the verb: it stands before its first statement. */
  async begin(verb: (store: Store) => Promise<unknown>): Promise<void> {
    this.#isStepped = true;
    this.#hasEnded = false;
    this.#running = verb(this.store).finally(() => (this.#hasEnded = true));
    this.#running.catch(() => {});
    await this.#came();
  }

  /** One statement further, or the COMMIT. */
  async step(): Promise<Came> {
    const go = this.#go;
    this.#go = null;
    go?.();
    return this.#came();
  }

  /** To the end, without a stop. Throws what the verb threw. */
  async finish(): Promise<void> {
    this.#isStepped = false;
    this.#go?.();
    this.#go = null;
    await this.#running;
  }

  async #came(): Promise<Came> {
    for (;;) {
      await delay(0);
      if (this.#hasEnded) return "to its end";
      if (this.#go) return "to a statement";
      if (await this.#isLocked()) return "to a lock";
    }
  }

  #wait(): Promise<void> | undefined {
    if (!this.#isStepped) return undefined;
    assert.equal(this.#go, null, "a verb has one statement at a time");
    return new Promise((resolve) => (this.#go = resolve));
  }

  #stepped(connection: Connection): Connection {
    const statements = <S extends Session>(session: S, also: (name: string) => unknown = () => undefined): S =>
      new Proxy(session, {
        get: (target, name) => {
          const own: unknown = also(String(name)) ?? Reflect.get(target, name, target);
          if (name !== "rows" && name !== "run") return typeof own === "function" && own.bind ? own.bind(target) : own;
          return async (...args: unknown[]) => {
            await this.#wait();
            return (own as (...given: unknown[]) => unknown).apply(target, args);
          };
        },
      });
    type Work = (tx: Session) => Promise<unknown>;
    return statements(connection, (name) => {
      if (name !== "transaction" && name !== "brief" && name !== "maintain" && name !== "once") return undefined;
      const begin = connection[name].bind(connection) as (work: Work, ...more: unknown[]) => Promise<unknown>;
      return (work: Work, ...more: unknown[]) =>
        begin(
          async (tx) => {
            const worked = await work(statements(tx));
            await this.#wait();
            return worked;
          },
          ...more,
        );
    });
  }
}
