// The store port on Redis, assembled: every verb is one script, or reads followed by one script under guard. There is neither `commit` nor
// `transact`: the user's own writes are not in this server.
import type { Emitter } from "../../job/events.ts";
import type { JobState, KindSettings } from "../../job/job.ts";
import type { Clock } from "../../job/time.ts";
import { observed, type WakeupChannel } from "../observed.ts";
import type { Store } from "../port.ts";
import { STATE } from "../rows.ts";
import { batches } from "./batches.ts";
import { collections } from "./collections.ts";
import type { Connection } from "./connection.ts";
import { wrapError } from "./errors.ts";
import { inspecting } from "./inspect.ts";
import { losses } from "./losses.ts";
import { operating } from "./operate.ts";
import { condemn, heldBy, takeBack } from "./recover.ts";
import { schedules } from "./schedules.ts";
import { AT_ONCE, Enqueuing, MAX_COST } from "./enqueue.ts";
import { turn, write } from "./turn.ts";
import { upkeep } from "./upkeep.ts";
import { beat, leave, listWorkers, register } from "./workers.ts";

export interface RedisStoreDeps {
  readonly connection: Connection;
  readonly clock: Clock;
  /** How other processes are woken. Null: only the listeners of this one are. */
  readonly wakeups: WakeupChannel | null;
  /** Hears how long each call took. Omitted: calls are not timed. */
  readonly events?: Emitter;
}

export function redisStore({ connection, clock, wakeups, events }: RedisStoreDeps): Store {
  const enqueuing = new Enqueuing(connection);
  return observed(
    {
      name: "redis",
      // More is staged first, which costs the server as much again.
      bulk: MAX_COST,
      bulkAtOnce: AT_ONCE,
      // 500 took 15 ms of the server.
      purgesAtOnce: 200,
      wakesSurely: true,
      async declare(kinds) {
        for (let from = 0; from === 0 || from < kinds.length; from += DECLARED_AT_ONCE)
          await declare(connection, kinds.slice(from, from + DECLARED_AT_ONCE));
      },
      enqueue: (drafts, call) => enqueuing.enqueue(drafts, call),
      register: (worker) => register(connection, worker),
      turn: (worker, settlements, room) => turn(connection, worker, settlements, room),
      write: (writes) => write(connection, writes),
      beat: (worker, said) => beat(connection, worker, said),
      leave: (worker) => leave(connection, worker),
      workers: (query) => listWorkers(connection, query),
      condemn: (request) => condemn(connection, request),
      heldBy: (query) => heldBy(connection, query),
      takeBack: (request) => takeBack(connection, request),
      async purge({ finishedOlderThanMs, incidentsOlderThanMs, limit }) {
        const args = [finishedOlderThanMs, incidentsOlderThanMs, limit].map(String);
        const [jobs, incidents, more] = (await connection.eval("purge", args)) as [number, number, number];
        return { jobs, incidents, more: more === 1 };
      },
      close: () => connection.close(),
      inspect: inspecting(connection),
      operate: operating(connection),
      losses: losses(connection),
      upkeep: upkeep(connection),
      schedules: schedules(connection),
      batches: batches(connection),
      collections: collections(connection),
    },
    { words: wrapError, wakeups, notifyThemselves: ["enqueue"], ...(events && { telemetry: { events, clock } }) },
  );
}

/** What one script declares: 250 kinds took 9 ms of the server. */
const DECLARED_AT_ONCE = 100;

async function declare(connection: Connection, kinds: readonly KindSettings[]): Promise<void> {
  const limits = kinds.flatMap(({ keyed = [] }) => keyed);
  const given = (value: number | null): string => (value === null ? "" : String(value));
  await connection.eval("declare", [
    String(kinds.length),
    ...kinds.flatMap((kind) => {
      const { name, timeoutMs, maxRuntimeMs, graceMs, retention } = kind;
      // By the numbers of states: what the scripts know.
      const own = Object.entries(retention ?? {}).map(([state, ms]) => [STATE[state as JobState], ms]);
      const keep = own.length === 0 ? "" : JSON.stringify(Object.fromEntries(own));
      return [name, JSON.stringify(kind), given(timeoutMs), given(maxRuntimeMs), String(graceMs), keep];
    }),
    String(limits.length),
    ...limits.flatMap(({ name, running, intervalMs, burst, strict }) => [
      name,
      `${given(running)}|${given(intervalMs)}|${burst}|${strict ? 1 : 0}`,
    ]),
  ]);
}
