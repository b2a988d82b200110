// What contact with the server means for a worker and for its neighbours: without its session a worker claims nothing, and a live
// process of the same host that has lost its session keeps its work.
import assert from "node:assert/strict";
import { test } from "node:test";
import pg from "pg";
import { job, open } from "../../src/index.ts";
import { resettingProxy } from "../regressions/resetting-proxy.ts";
import { freshSchema } from "../support/postgres.ts";
import { untilState, untilTrue } from "../support/processes.ts";
import { slow } from "./jobs.ts";
import { PATIENT, PostgresPlace } from "./place.ts";

test("a worker whose session is lost settles what it runs and claims nothing; with its session it claims again", async (t) => {
  const { url, schema } = await freshSchema(t);
  const proxy = await resettingProxy(t, url);
  const ends = new Map<string, () => void>();
  const gated = job<null>("gated");
  gated.handle((_, run) => new Promise<void>((resolve) => void ends.set(run.id, resolve)));
  // Turns go to the server directly; only the session that speaks for the worker goes through the proxy.
  class Direct extends pg.Client {
    constructor(settings: pg.ClientConfig) {
      super({ ...settings, connectionString: url });
    }
  }
  const pool = Object.assign(new pg.Pool({ connectionString: proxy.url }), { Client: Direct });
  const engine = await open("postgres:", {
    jobs: [gated],
    logger: false,
    heartbeat: { ...PATIENT, contact: "10m", lease: "30m" },
    poll: "1h",
    postgres: { schema, pool },
  });
  t.after(async () => {
    await engine.close({ grace: "0ms" });
    await pool.end();
  });
  const worker = await engine.start({ concurrency: 1 });
  const { id: first } = await engine.enqueue(gated, null);
  await untilTrue(
    () => ends.has(first),
    (runs) => runs,
    "the first job runs",
  );
  const { promise: failed, resolve } = Promise.withResolvers<void>();
  engine.on("heartbeat.failed", () => resolve());
  proxy.refuse();
  await failed;
  const { id: second } = await engine.enqueue(gated, null);
  ends.get(first)!();
  // The turn that settles the first would claim the second.
  await untilState(engine, first, "succeeded");
  assert.equal(worker.held, 0);
  assert.equal((await engine.get(second))!.state, "queued");
  proxy.accept();
  await untilState(engine, second, "running");
  ends.get(second)!();
  await untilState(engine, second, "succeeded");
});

test("a live process of this host that has lost its session is not taken, however long `contact` is exceeded", async (t) => {
  const place = await PostgresPlace.shared(t);
  const proxy = await resettingProxy(t, place.url);
  const engine = await place.engine({ heartbeat: { ...PATIENT, contact: "500ms", lease: "30m" } });
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  const cutOff = place.child({ url: proxy.url, heartbeat: { ...PATIENT, lease: "30m" } });
  await cutOff.untilFact("started", { id });
  const { worker } = await cutOff.untilFact("working");
  proxy.refuse();
  // A worker elsewhere shows that contact is lost by now: it is cut off at the same time, and taken.
  const elsewhere = place.child({ url: place.url, elsewhere: true, heartbeat: { ...PATIENT, lease: "30m" } });
  const { worker: taken } = await elsewhere.untilFact("working");
  elsewhere.kill();
  await untilTrue(
    async () => (await engine.operator.recover(), engine.incidents()),
    (incidents) => incidents.some((incident) => incident.worker === taken),
    "contact with the worker elsewhere is lost",
  );
  const present = await engine.workers();
  assert.equal(present.find((row) => row.id === worker)?.state, "live");
  const { state, attempt } = (await engine.get(id))!;
  assert.deepEqual([state, attempt], ["running", 1]);
});
