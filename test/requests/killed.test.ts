// Processes that are killed with SIGKILL while their requests are in flight. The numbers are those of docs/requirements.md.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import type { ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { type Engine, open } from "../../src/index.ts";
import { Child, untilTrue } from "../support/processes.ts";
import { again, asking, HEARTBEAT, KINDS, once } from "./kinds.ts";
import { Receiver } from "./server.ts";

class Place {
  readonly url: string;
  readonly #effects: string;
  readonly #receiver: Receiver;
  readonly #t: TestContext;

  constructor(t: TestContext, receiver: Receiver) {
    const folder = mkdtempSync(join(tmpdir(), "outlive-requests-"));
    t.after(() => rmSync(folder, { recursive: true, force: true }));
    this.url = `sqlite:${join(folder, "jobs.db")}`;
    this.#effects = join(folder, "effects");
    this.#receiver = receiver;
    this.#t = t;
  }

  async engine(): Promise<Engine> {
    const engine = await open(this.url, { jobs: KINDS, logger: false, heartbeat: HEARTBEAT });
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

test("HR-01 HR-04 HR-08 a process killed after sending: each policy keeps its word, and the report says which", async (t) => {
  const held: ServerResponse[] = [];
  let isOpen = false;
  const receiver = await Receiver.start(t, (_, response) => {
    if (isOpen) response.end("fine");
    else held.push(response);
  });
  const place = new Place(t, receiver);
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
    [`error ${ids[1]} unknown`, `response ${ids[0]} fine`, `response ${ids[2]} found`, `unknown ${ids[2]}`].toSorted(),
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

test("HR-02 HR-05 HR-12 300 requests in flight are sent again by others, each settled once with one callback, in one incident", async (t) => {
  let isOpen = false;
  const receiver = await Receiver.start(t, (_, response) => {
    if (isOpen) response.end("fine");
  });
  const place = new Place(t, receiver);
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

test("HR-03 after the fifth kill all requests are still sent at once, and the sixth makes them suspects", async (t) => {
  let isOpen = false;
  const receiver = await Receiver.start(t, (_, response) => {
    if (isOpen) response.end("fine");
  });
  const place = new Place(t, receiver);
  const engine = await place.engine();
  const many = 40;
  await engine.enqueueMany(
    again,
    Array.from({ length: many }, (_, n) => n),
  );
  for (let kill = 1; kill <= 5; kill++) {
    const worker = await place.worker();
    await receiver.until(() => receiver.received.length === many * kill);
    worker.kill();
    await worker.exited;
  }
  isOpen = true;
  await place.worker();
  await untilEnded(engine, "all");
  assert.equal(receiver.received.length, many * 6);
  const { jobs } = await engine.list({ kind: "again", limit: 100 });
  assert.ok(
    jobs.every(
      ({ state, counters }) => state === "succeeded" && counters.crashes === 0 && counters.interruptions === 5,
    ),
  );
});

test("HR-09 a process that is asked to stop releases what it did not finish, and the next one sends it", async (t) => {
  let isOpen = false;
  const receiver = await Receiver.start(t, (_, response) => {
    if (isOpen) response.end("fine");
  });
  const place = new Place(t, receiver);
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
