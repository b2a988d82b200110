// C17: a supervisor's note about a death was matched by pid and by the supervisor's wall clock, so it reached the wrong worker or none.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { type Engine, open, type Report } from "../../src/index.ts";
import { jobs, slow } from "../support/jobs.ts";
import { freshSchema } from "../support/postgres.ts";
import { Place, untilTrue } from "../support/processes.ts";
import { inNamespaces, nodeUnder } from "./namespaces.ts";
import { Supervisors } from "./supervised.ts";
import { instantOf } from "../support/former-names.ts";

const preload = (name: string): string[] => ["--import", fileURLToPath(new URL(name, import.meta.url))];

async function firstReport(engine: Engine): Promise<Report> {
  const [first] = await untilTrue(
    () => engine.incidents(),
    (found) => found.length > 0,
    "the death is found",
  );
  return (await engine.report(first!.id))!;
}

test("C17: of two workers with one pid in two PID namespaces, the one that died is noted", inNamespaces, async (t) => {
  const supervisors = new Supervisors(t);
  const place = new Place(t);
  const engine = await place.engine();
  const container = {
    store: place.url,
    folder: place.folder,
    node: nodeUnder(place.folder, "node-in-a-container", "-pf --mount-proc"),
    nodeOptions: preload("./chosen-pids.ts"),
  };
  const first = supervisors.work(container);
  await first.untilSaid(/ works on /);
  const victim = (await engine.workers())[0]!;
  const second = supervisors.work(container);
  await second.untilSaid(/ works on /);
  const other = (await engine.workers()).find(({ id }) => id !== victim.id)!;
  assert.deepEqual([victim.pid, other.pid], [500, 500]);
  // The last that was started is the worker process itself.
  process.kill(first.pids().at(-1)!, "SIGKILL");
  await first.untilSaid(/ (?:is started again|restarts) in /);
  const { evidence, workerId } = (await firstReport(engine)).deadWorkers[0]!;
  assert.equal(workerId, victim.id);
  assert.match(String(evidence), /^killed by SIGKILL/);
  assert.match(String(evidence), /\bpid 500, start ticks \d+, pid:\[\d+\]/);
  const all = await engine.workers({ which: "all" });
  const { lastWord, state } = all.find(({ id }) => id === other.id)!;
  assert.deepEqual([state, lastWord], ["live", null]);
});

test("C17: PostgreSQL keeps the evidence of a supervisor whose wall clock is 30 s ahead", async (t) => {
  const supervisors = new Supervisors(t);
  const { url, schema } = await freshSchema(t);
  const place = new Place(t);
  const engine = await open(url, { jobs, logger: false, postgres: { schema } });
  t.after(() => engine.close());
  const { id } = await engine.enqueue(slow, { ms: 60_000 });
  const supervised = supervisors.work({
    store: url,
    folder: place.folder,
    nodeOptions: preload("./shifted-clock.ts"),
    env: { OUTLIVE_POSTGRES_SCHEMA: schema, OUTLIVE_TEST_CLOCK_MS: "30000", OUTLIVE_TEST_CLOCK_ONLY: "supervisor" },
  });
  await untilTrue(
    () => engine.get(id),
    (job) => job?.state === "running",
    "the job runs",
  );
  const [{ pid } = { pid: 0 }] = await engine.workers();
  process.kill(pid, "SIGKILL");
  await supervised.untilSaid(/ (?:is started again|restarts) in /);
  const { evidence, lastSeenAliveAt } = (await firstReport(engine)).deadWorkers[0]!;
  assert.match(String(evidence), /^killed by SIGKILL/);
  const { detectedAt } = (await engine.incidents())[0]!;
  assert.ok(lastSeenAliveAt === null || instantOf(lastSeenAliveAt) <= detectedAt, "it was not seen after it was found");
});
