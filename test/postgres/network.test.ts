// What stands between a worker and the server: a pooler that makes the lock worth nothing, a network that swallows everything, and
// a clock that is hours off.
import assert from "node:assert/strict";
import { connect as dial, createServer, type Socket } from "node:net";
import { test, type TestContext } from "node:test";
import { connect } from "../../src/client.ts";
import { contractsOf } from "../../src/engine/client.ts";
import { Engine } from "../../src/engine/engine.ts";
import { engineSettings, settingsWithDefaults } from "../../src/engine/options.ts";
import { type EngineEvent, open } from "../../src/index.ts";
import { toStoredError } from "../../src/job/errors.ts";
import { EventBus } from "../../src/job/events.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import { checkProcess, processIdentity } from "../../src/platform/identity.ts";
import { openBackend } from "../../src/stores/registry.ts";
import { untilState, untilTrue } from "../support/processes.ts";
import { jobs, slow, transfer } from "./jobs.ts";
import { pgbouncer } from "./pgbouncer.ts";
import { PATIENT, PostgresPlace, SHORT } from "./place.ts";

for (const mode of ["transaction", "session"] as const) {
  test(`behind a pooler in ${mode} mode work goes on, the log says that the lock proves nothing, and a death is proved by the kernel`, async (t) => {
    const place = await PostgresPlace.shared(t);
    const url = await pgbouncer(t, place.url, mode);
    const engine = await place.engine();
    const first = place.child({ url, heartbeat: SHORT });
    const notice = await first.untilEvent("store.notice");
    assert.match(String(notice["text"]), /A pooler stands between/);
    await first.untilFact("working");
    const { id } = await enqueuedThrough(url, place);
    await untilState(engine, id, "succeeded");
    const [row] = await engine.workers();
    assert.equal(row!.lock.name, null);
    assert.match(row!.lock.identity!, / outlive-[0-9a-f]{12} /, "its sessions can still be ended by their name");
    const { id: long } = await engine.enqueue(slow, { ms: 600_000 });
    await first.untilFact("started", { id: long });
    const second = place.child({ url });
    await second.untilFact("working");
    first.kill();
    await second.untilFact("started", { id: long, attempt: 2 });
    const [incident] = await engine.incidents();
    assert.equal(incident!.how, "gone", "a neighbour on the same host asked the kernel");
    const held = await place.query(
      "SELECT 1 FROM pg_locks l JOIN outlive.fleet f ON f.lock_name = ((l.classid::bigint << 32) | l.objid::bigint)::text",
    );
    assert.deepEqual(held, [], "no lock was left in a session of the pooler's");
  });
}

/** By a client, as a web process behind a pooler does. */
async function enqueuedThrough(url: string, { schema }: PostgresPlace): Promise<{ id: string }> {
  const client = await connect(url, { jobs, postgres: { schema } });
  try {
    return await client.enqueue(transfer, { n: 1 });
  } finally {
    await client.close();
  }
}

test("a host that is lost with its connections half open is recovered when the lease has expired", async (t) => {
  const place = await PostgresPlace.shared(t);
  const proxy = await swallowingProxy(t, place.url);
  const engine = await place.engine();
  const lost = place.child({ url: proxy.url, heartbeat: SHORT });
  await lost.untilFact("working");
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  await lost.untilFact("started", { id });
  const other = place.child();
  await other.untilFact("working");
  proxy.swallow();
  const again = await other.untilFact("started", { id, attempt: 2 });
  assert.ok(again);
  const [incident] = await engine.incidents();
  assert.equal(incident!.how, "silent");
  await untilTrue(
    () =>
      place.query(
        "SELECT 1 FROM pg_locks l JOIN outlive.fleet f ON f.lock_name = ((l.classid::bigint << 32) | l.objid::bigint)::text WHERE f.state = 'gone'",
      ),
    (left) => left.length === 0,
    "the sessions of the lost host have ended",
  );
});

test("a client's clock that is hours off changes nothing: the server's decides", async (t) => {
  const place = await PostgresPlace.shared(t);
  const other = await place.engine();
  const wrong = { ...systemClock, now: () => systemClock.now() - 7 * 3_600_000 };
  const bus = new EventBus(toStoredError);
  const told: EngineEvent[] = [];
  bus.onAny((event) => void told.push(event));
  const identity = processIdentity();
  const options = { postgres: { schema: place.schema } };
  const deps = { clock: wrong, random: systemRandom, events: bus, bootId: identity.bootId };
  const settings = engineSettings({ heartbeat: PATIENT }, "postgres");
  const backend = await openBackend(place.url, options, deps, { ...settings, migrate: false });
  const contracts = contractsOf(jobs);
  const engine = new Engine({
    backend,
    settings,
    contracts,
    clock: backend.clock!,
    random: systemRandom,
    bus,
    identity,
    processState: checkProcess,
  });
  t.after(() => engine.close({ grace: "0ms" }));
  await backend.store.declare([...contracts.values()].map((contract) => settingsWithDefaults(contract, settings)));
  await engine.start();
  const child = place.child();
  await child.untilFact("working");
  const { id } = await engine.enqueue(slow, { ms: 1 });
  await untilState(other, id, "succeeded");
  const { id: later } = await engine.enqueue(slow, { ms: 1 }, { delay: "1h" });
  const why = await engine.why(later);
  assert.equal(why!.because, "not-due");
  assert.ok(Math.abs(Number(why!.details["dueInMs"]) - 3_600_000) < 60_000, JSON.stringify(why));
  child.kill();
  const [incident] = await untilTrue(
    () => other.incidents(),
    (found) => found[0] !== undefined && found[0].completedAt !== null,
    "its death is found",
  );
  assert.ok(Math.abs(incident!.detectedAt - Date.now()) < 60_000, "and stands in the report at the server's time");
  assert.deepEqual(
    told.filter(({ name }) => name === "lease.lost" || name === "worker.disowned"),
    [],
  );
});

test("a pool of one connection is enough to work, to enqueue and to look", async (t) => {
  const place = await PostgresPlace.shared(t);
  await using engine = await open(place.url, {
    jobs,
    logger: false,
    heartbeat: PATIENT,
    postgres: { schema: place.schema, connections: 1 },
  });
  const { id } = await engine.enqueue(slow, { ms: 1 });
  await engine.start();
  await untilState(engine, id, "succeeded");
});

/** Passes everything on until it swallows everything, without closing anything. */
async function swallowingProxy(t: TestContext, target: string): Promise<{ url: string; swallow: () => void }> {
  const { hostname, port } = new URL(target);
  const sockets = new Set<Socket>();
  let swallowing = false;
  const server = createServer((near) => {
    const far = dial(Number(port), hostname);
    for (const [from, to] of [
      [near, far],
      [far, near],
    ] as const) {
      sockets.add(from);
      from.on("data", (data) => void (swallowing || to.write(data)));
      from.on("error", () => {});
      from.on("close", () => void (swallowing || to.destroy()));
    }
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  const url = new URL(target);
  url.host = `127.0.0.1:${(server.address() as { port: number }).port}`;
  return { url: url.href, swallow: () => void (swallowing = true) };
}
