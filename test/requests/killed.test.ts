// Processes that are killed with SIGKILL while their requests are in flight. The numbers are those of docs/requirements.md.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import type { ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { Registry } from "prom-client";
import { type Engine, open } from "../../src/index.ts";
import { type Logger, prettyWriter } from "../../src/log.ts";
import { attachMetrics } from "../../src/metrics.ts";
import { migrationsOf } from "../../src/stores/registry.ts";
import { raw } from "../engine/engines.ts";
import { freshDatabase } from "../support/postgres.ts";
import { Child, untilTrue } from "../support/processes.ts";
import { freshName } from "../support/redis.ts";
import { again, asking, calling, HEARTBEAT, KINDS, once } from "./kinds.ts";
import { Receiver } from "./server.ts";

type StoreName = "SQLite" | "PostgreSQL" | "Redis";

const STORES: Readonly<Record<StoreName, (t: TestContext, folder: string) => Promise<string>>> = {
  SQLite: async (_, folder) => `sqlite:${join(folder, "jobs.db")}`,
  PostgreSQL: async (t) => {
    const url = await freshDatabase(t);
    await (await migrationsOf(url)).up();
    return url;
  },
  Redis: async (t) => {
    const { url, name } = await freshName(t);
    return `${url}?store=${name}`;
  },
};
const NAMES = Object.keys(STORES) as StoreName[];

class Place {
  readonly url: string;
  readonly #effects: string;
  readonly #receiver: Receiver;
  readonly #t: TestContext;

  private constructor(t: TestContext, receiver: Receiver, folder: string, url: string) {
    t.after(() => rmSync(folder, { recursive: true, force: true }));
    this.url = url;
    this.#effects = join(folder, "effects");
    this.#receiver = receiver;
    this.#t = t;
  }

  static async of(t: TestContext, receiver: Receiver, store: StoreName = "SQLite"): Promise<Place> {
    const folder = mkdtempSync(join(tmpdir(), "outlive-requests-"));
    return new Place(t, receiver, folder, await STORES[store](t, folder));
  }

  async engine(logger: Logger | false = false): Promise<Engine> {
    const engine = await open(this.url, { jobs: KINDS, logger, heartbeat: HEARTBEAT });
    this.#t.after(() => engine.close({ grace: "0ms" }));
    return engine;
  }

  async worker(): Promise<Child> {
    const child = new Child(
      fork(fileURLToPath(new URL("./worker-process.ts", import.meta.url)), [this.url], {
        execArgv: ["--disable-warning=ExperimentalWarning"],
        env: { ...process.env, OUTLIVE_TEST_RECEIVER: this.#receiver.url, OUTLIVE_TEST_EFFECTS: this.#effects },
        stdio: ["ignore", "inherit", "pipe", "ipc"],
      }),
    );
    this.#t.after(() => child.kill());
    await child.untilFact("working");
    return child;
  }

  effects(): readonly string[] {
    return existsSync(this.#effects) ? readFileSync(this.#effects, "utf8").trim().split("\n").toSorted() : [];
  }
}

async function untilEnded(engine: Engine, ...ids: readonly string[]): Promise<void> {
  await untilTrue(
    async () => (await engine.counts()).reduce((sum, one) => sum + one.ready + one.delayed + one.held + one.running, 0),
    (left) => left === 0,
    `${ids.join(", ")} have ended`,
  );
}

for (const store of NAMES)
  test(`HR-01 HR-04 HR-08 HR-18 a process killed after sending: each policy keeps its word, and the report says which (${store})`, async (t) => {
    const held: ServerResponse[] = [];
    let isOpen = false;
    const receiver = await Receiver.start(t, (_, response) => {
      if (isOpen) response.end("fine");
      else held.push(response);
    });
    const place = await Place.of(t, receiver, store);
    const engine = await place.engine();
    const first = await place.worker();
    const ids = [await engine.enqueue(again, 1), await engine.enqueue(once, 2), await engine.enqueue(asking, 3)].map(
      ({ id }) => id,
    );
    await receiver.until(() => receiver.received.length === 3);
    first.kill();
    await first.exited;
    isOpen = true;
    await place.worker();
    await untilEnded(engine, ...ids);
    assert.deepEqual(
      receiver.received.map(({ url }) => url).toSorted(),
      ["/again", "/again", "/asking", "/once"],
      "only what may be sent again was",
    );
    assert.deepEqual(
      place.effects(),
      [
        `error ${ids[1]} unknown`,
        `response ${ids[0]} fine`,
        `response ${ids[2]} found`,
        `unknown ${ids[2]}`,
      ].toSorted(),
    );
    assert.deepEqual(await Promise.all(ids.map(async (id) => (await engine.get(id))?.state)), [
      "succeeded",
      "dead",
      "succeeded",
    ]);
    const report = (await engine.report())!;
    assert.deepEqual(report.recoveredJobs.map(({ kind, decision }) => `${kind} ${decision}`).toSorted(), [
      "again resend",
      "asking ask",
      "once unknown",
    ]);
    assert.match(report.text, /Requests In Flight: 3\n {2}- /);
    assert.match(report.text, /again: 1 sent again/);
    assert.match(report.text, /once: 1 of unknown outcome: failed/);
  });

for (const store of NAMES)
  test(`HR-02 HR-05 HR-12 300 requests in flight are sent again by others, each settled once with one callback, in one incident (${store})`, async (t) => {
    let isOpen = false;
    const receiver = await Receiver.start(t, (_, response) => {
      if (isOpen) response.end("fine");
    });
    const place = await Place.of(t, receiver, store);
    const engine = await place.engine();
    await engine.enqueueMany(
      again,
      Array.from({ length: 300 }, (_, n) => n),
    );
    const first = await place.worker();
    await receiver.until(() => receiver.received.length === 300);
    // Both recover it, at the same time.
    const [neighbour, other] = await Promise.all([place.worker(), place.worker()]);
    isOpen = true;
    first.kill();
    await untilEnded(engine, "all");
    const counts = new Map(receiver.received.map(({ body }) => [body, 0]));
    for (const { body } of receiver.received) counts.set(body, counts.get(body)! + 1);
    assert.equal(counts.size, 300);
    assert.deepEqual(new Set(counts.values()), new Set([2]), "each was sent once by each process");
    assert.equal(place.effects().length, 300);
    assert.equal(new Set(place.effects()).size, 300, "no callback twice");
    const incident = (await engine.report())!;
    assert.equal(incident.recoveredJobs.length, 300);
    assert.ok(incident.recoveredJobs.every(({ success, decision }) => success && decision === "resend"));
    assert.equal((await engine.incidents()).length, 1);
    for (const one of [neighbour, other]) {
      one.kill("SIGTERM");
      assert.equal((await one.exited).code, 0);
    }
  });

test("HR-08 HR-22 a request that can't be queued again stops none of the others: it is an error in the log, counted, and tried again", async (t) => {
  let isOpen = false;
  const receiver = await Receiver.start(t, (_, response) => {
    if (isOpen) response.end("fine");
  });
  const place = await Place.of(t, receiver);
  const lines: string[] = [];
  const engine = await place.engine(prettyWriter({ write: (line) => void lines.push(line), colours: false }));
  const registry = new Registry();
  attachMetrics(engine, { registry });
  const ids: string[] = [];
  for (let n = 0; n < 5; n++) ids.push((await engine.enqueue(again, n)).id);
  const first = await place.worker();
  await receiver.until(() => receiver.received.length === 5);
  first.kill();
  await first.exited;
  const db = raw(t, place.url.slice("sqlite:".length));
  db.exec(`CREATE TRIGGER refusing BEFORE UPDATE OF state ON outlive_jobs WHEN OLD.id = '${ids[2]}'
    BEGIN SELECT RAISE(ABORT, 'not this one'); END`);
  await engine.operator.recover();
  const states = await Promise.all(ids.map(async (id) => (await engine.get(id))?.state));
  assert.deepEqual(states, ["queued", "queued", "running", "queued", "queued"]);
  const errors = lines.filter((line) => / error /.test(line));
  assert.equal(errors.length, 1);
  assert.match(errors[0]!, new RegExp(`job ${ids[2]} \\(again\\) of dead worker .*: not recovered: .*not this one`));
  const { values } = await registry.getSingleMetric("outlive_requests_recovered_total")!.get();
  assert.deepEqual(
    values.map(({ labels, value }) => [labels["kind"], labels["decision"], value]),
    [
      ["again", "resend", 4],
      ["again", "failed", 1],
    ],
  );
  db.exec("DROP TRIGGER refusing");
  isOpen = true;
  await place.worker();
  await untilEnded(engine, ...ids);
  assert.deepEqual(place.effects(), ids.map((id) => `response ${id} fine`).toSorted());
});

for (const store of NAMES)
  test(`HR-20 a handler's POST that a killed process had sent is not sent again, and the one before it is not repeated (${store})`, async (t) => {
    let isOpen = false;
    const receiver = await Receiver.start(t, ({ url }, response) => {
      if (isOpen || url === "/first") response.end("fine");
    });
    const place = await Place.of(t, receiver, store);
    const engine = await place.engine();
    const { id } = await engine.enqueue(calling, null);
    const first = await place.worker();
    await receiver.until(() => receiver.received.length === 2);
    first.kill();
    await first.exited;
    isOpen = true;
    await place.worker();
    await untilEnded(engine, id);
    const sent = (): string[] => receiver.received.map(({ url }) => url);
    const { state, error, counters } = (await engine.get(id))!;
    assert.deepEqual([state, counters.errors, sent(), place.effects()], ["dead", 1, ["/first", "/second"], []]);
    const report = (await engine.report())!;
    assert.deepEqual(
      report.recoveredJobs.map(({ decision }) => decision),
      ["retry"],
    );
    assert.doesNotMatch(report.text, /Requests In Flight/);
    assert.match(error!.message, /"fetch POST .*" of job .* was sent, and its outcome is unknown: attempt 1 /);
    await engine.retry(id);
    await untilEnded(engine, id);
    assert.deepEqual([sent(), place.effects()], [["/first", "/second", "/second"], [`called ${id}`]]);
  });

test("HR-03 after the fifth kill all requests are still sent at once, the sixth makes them suspects, and all of them end", async (t) => {
  let isOpen = false;
  const receiver = await Receiver.start(t, (_, response) => {
    if (isOpen) response.end("fine");
  });
  const place = await Place.of(t, receiver);
  const engine = await place.engine();
  const many = 40;
  await engine.enqueueMany(
    again,
    Array.from({ length: many }, (_, n) => n),
  );
  for (let kill = 1; kill <= 6; kill++) {
    const worker = await place.worker();
    await receiver.until(() => receiver.received.length === many * kill);
    worker.kill();
    await worker.exited;
  }
  isOpen = true;
  await place.worker();
  await untilEnded(engine, "all");
  assert.equal(receiver.received.length, many * 7);
  const { jobs } = await engine.list({ kind: "again", limit: 100 });
  assert.equal(jobs.length, many);
  assert.ok(
    jobs.every(
      ({ state, counters }) => state === "succeeded" && counters.crashes === 1 && counters.interruptions === 5,
    ),
  );
});

test("HR-09 a process that is asked to stop releases what it did not finish, and the next one sends it", async (t) => {
  let isOpen = false;
  const receiver = await Receiver.start(t, (_, response) => {
    if (isOpen) response.end("fine");
  });
  const place = await Place.of(t, receiver);
  const engine = await place.engine();
  const { id } = await engine.enqueue(again, 1);
  const first = await place.worker();
  await receiver.until(() => receiver.received.length === 1);
  first.kill("SIGTERM");
  assert.equal((await first.exited).code, 0);
  assert.equal((await engine.incidents()).length, 0, "nobody died");
  isOpen = true;
  await place.worker();
  await untilEnded(engine, id);
  assert.deepEqual(place.effects(), [`response ${id} fine`]);
  assert.equal((await engine.get(id))?.counters.interruptions, 1);
});
