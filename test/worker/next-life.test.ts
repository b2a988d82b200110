// A worker whose work was taken keeps its lock until its next life has registered: a free lock would prove a death that did not happen.
import assert from "node:assert/strict";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { WorkerHost } from "../../src/engine/work.ts";
import { systemClock as clock, systemRandom as random } from "../../src/platform/clock.ts";
import { processIdentity } from "../../src/platform/identity.ts";
import type { Backend } from "../../src/stores/backend.ts";
import { openSqlite } from "../../src/stores/sqlite/open.ts";
import { Place, untilTrue } from "../support/processes.ts";
import { aKind, Recorder } from "../support/samples.ts";

test("a worker that was taken for dead drops its lock after its next life has registered", async (t) => {
  const place = new Place(t);
  const events = new Recorder();
  const identity = processIdentity();
  const opened: Backend = await openSqlite({ clock, random, events, bootId: identity.bootId }, { path: place.path });
  t.after(() => opened.close());
  const calls: string[] = [];
  const { store, liveness } = opened;
  const backend: Backend = {
    ...opened,
    store: new Proxy(store, {
      get: (target, name) => {
        if (name === "register")
          return async (worker: Parameters<typeof store.register>[0]) => {
            const answer = await store.register(worker);
            calls.push(`registered ${worker.predecessor === null ? "first" : "next"}`);
            return answer;
          };
        const value: unknown = Reflect.get(target, name);
        return typeof value === "function" ? value.bind(target) : value;
      },
    }),
    liveness: {
      ...liveness,
      take: async (worker) => {
        const lock = await liveness.take(worker);
        return { ...lock, drop: (remove) => (calls.push("dropped"), lock.drop(remove)) };
      },
    },
  };
  const times = { heartbeatMs: 200, leaseMs: 20_000, sweepMs: 1_000, probeMs: 250, contactMs: 3_000 };
  const kind = { settings: aKind(), parse: null, delayMs: null, handler: () => null };
  const host = await WorkerHost.start(
    { backend, clock, random, events, kinds: new Map([["mail", kind]]) } as unknown as Parameters<
      typeof WorkerHost.start
    >[0],
    {
      ...identity,
      version: "0",
      times,
      retention: { finishedMs: 1e9, incidentsMs: 1e9 },
      concurrency: { total: 1, perKind: new Map() },
      pollMs: 1_000,
    },
    identity,
  );
  const first = host.id;
  const db = new DatabaseSync(place.path, { timeout: 10_000 });
  db.prepare("UPDATE outlive_workers SET state = 'gone' WHERE id = ?").run(first);
  db.close();
  await untilTrue(
    () => host.id,
    (id) => id !== first,
    "its next life has begun",
  );
  assert.deepEqual(calls, ["registered first", "registered next", "dropped"]);
  await host.stop({ grace: "0ms" });
  assert.deepEqual(calls.at(-1), "dropped");
});
