// `workers`, `recover`, `incidents`, `incident`, `recovery`: on processes that were really killed and frozen.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { cliOn, shapeOf } from "../support/cli.ts";
import { freezeOutsideOfAWrite, Place, SHORT, untilTrue } from "../support/processes.ts";
import { INCIDENT, REPORT, WORKER } from "./shapes.ts";

test("a store without workers and incidents says so", async (t) => {
  const place = new Place(t);
  await place.engine();
  const { run, json } = cliOn(t, place.url);
  const [workers, incidents, none, dry, recovered, status, report, latest] = await Promise.all([
    run("workers"),
    json("incidents"),
    run("incident", "no-such"),
    json("recover", "--dry-run"),
    json("recover"),
    run("recovery", "status"),
    run("recovery", "report"),
    json("recovery", "status"),
  ]);
  assert.equal(workers.stdout, "No worker is alive. Start one: outlive work\n");
  assert.deepEqual(incidents.value, { incidents: [], next: null });
  assert.deepEqual(
    [none.code, none.stderr],
    [3, "outlive: There is no incident no-such.\n  List them: outlive incidents\n"],
  );
  assert.deepEqual(dry.value, { wouldRecover: [] });
  assert.deepEqual(recovered.value, { report: null });
  assert.equal(
    status.stdout,
    "No worker is dead; nothing would be recovered.\n\nThere was no recovery yet: no worker has died.\n",
  );
  assert.equal(report.stdout, "There was no recovery yet: no worker has died.\n");
  assert.deepEqual(latest.value, { wouldRecover: [], latest: null });
});

test("FR-011 FR-018 FR-021 FR-025 FR-055 a killed worker: what it holds is shown, a dry run changes nothing, and recover reports what it did", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await engine.operator.enqueueByName("slow", { ms: 600_000 }, { id: "slow-1" });
  const child = place.child({ only: ["slow"] });
  await child.untilFact("started");
  const { worker } = await child.untilFact("working");
  const { run, json } = cliOn(t, place.url);
  const [live, table, beats] = await Promise.all([json("workers"), run("workers"), run("workers", "--heartbeat")]);
  assert.deepEqual(shapeOf(live.value), { workers: [WORKER] });
  assert.match(
    table.stdout,
    new RegExp(`^WORKER +PID +STATE +HELD .*\n${String(worker)} +${child.pid} +live +1 of 10 `),
  );
  assert.match(
    beats.stdout,
    /^WORKER +STATE +HEARTBEAT +LEASE +BEATS +LOOP LAG +HELD +JOBS +LAST WORD\n.* 1 of 10 +slow-1 *\n/,
  );
  assert.deepEqual(shapeOf((await json("workers", "--heartbeat")).value), {
    workers: [{ ...WORKER, heldIds: ["string"] }],
  });

  child.kill("SIGKILL");
  await child.exited;
  const [dry, dryText, gone, status] = await Promise.all([
    json("recover", "--dry-run"),
    run("recover", "--dry-run"),
    json("workers"),
    run("status", "--check"),
  ]);
  assert.deepEqual(shapeOf(dry.value), {
    wouldRecover: [
      {
        worker: "string",
        pid: "number",
        host: "string",
        how: "string",
        evidence: "string",
        heartbeatAgeMs: "number",
        jobs: [{ id: "string", kind: "string", attempt: "number" }],
      },
    ],
  });
  assert.match(
    dryText.stdout,
    /is gone; last heartbeat .* ago; its process is gone \(pid .*\); holds 1 job\n {2}- slow-1 \(slow, attempt 1\)\n/,
  );
  assert.match(dryText.stdout, /\nNothing was changed\. To do it: outlive recover\n$/);
  assert.equal((gone.value as { workers: { known: string }[] }).workers[0]?.known, "gone");
  assert.equal(status.code, 1);
  assert.match(
    status.stdout,
    /! Worker .* is gone and holds 1 job; no live worker can take them\.\n {2}outlive recover/,
  );
  assert.equal((await engine.get("slow-1"))?.state, "running", "nothing was changed");

  const { code, value } = await json("recover");
  assert.equal(code, 0);
  assert.deepEqual(shapeOf(value), { report: REPORT });
  assert.equal((await engine.get("slow-1"))?.state, "queued");

  const [incidents, incidentsText, recovery, report] = await Promise.all([
    json("incidents", "--limit", "1"),
    run("incidents"),
    json("recovery", "status"),
    run("recovery", "report"),
  ]);
  assert.deepEqual(shapeOf(incidents.value), { incidents: [INCIDENT], next: "null" });
  const [{ id }] = (incidents.value as { incidents: [{ id: string }] }).incidents;
  assert.match(incidentsText.stdout, new RegExp(`\n${id} .* gone +1 +in \\d`));
  assert.deepEqual(shapeOf(recovery.value), { wouldRecover: [], latest: REPORT });

  const [one, oneJson] = await Promise.all([run("incident", id), json("incident", id)]);
  assert.deepEqual(shapeOf(oneJson.value), REPORT);
  const [again, prefix] = await Promise.all([run("incidents", id), run("incident", id.slice(0, -1))]);
  assert.deepEqual([again.stdout, prefix.stdout].map(withoutTimes), [one.stdout, one.stdout].map(withoutTimes));
  assert.equal(
    withoutTimes(one.stdout),
    `Incident ${id}

worker     ${String(worker)} (pid P on H, V)
how        its process is gone (pid P, start ticks N, NS)
found      T (A ago)
heartbeat  A before that
recovered  in A by outlive recover
held       1 job

JOB     KIND  LAST STEP  DECISION              RUNNING AGAIN
slow-1  slow  -          runs again (crash 1)        not yet

Next: outlive job slow-1
`,
  );
  assert.equal(
    report.stdout
      .replaceAll(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, "T")
      .replace(/heartbeat: \S+ ago/, "heartbeat: A ago")
      .replace(/Duration: \d\.\ds/, "Duration: 0.0s"),
    `=== Queue Recovery Report ===
Started: T
Duration: 0.0s

Orphaned Jobs Found: 1
  - slow-1: retry (attempt 1/3)

Dead Workers: 1
  - ${String(worker)} (last heartbeat: A ago)

Recovery Complete: T
`,
  );
});

test("a frozen worker is silent; recover judges it only after it watched for a lease", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await engine.operator.enqueueByName("slow", { ms: 600_000 }, { id: "slow-1" });
  const child = place.child({ only: ["slow"], heartbeat: SHORT });
  await child.untilFact("started");
  const worker = async () => (await engine.workers())[0]!;
  await freezeOutsideOfAWrite(engine, child.pid);
  await untilTrue(worker, (now) => Date.now() > now.heartbeatAt + now.leaseMs, "its lease is over");
  const { run, json } = cliOn(t, place.url);
  const [workers, first] = await Promise.all([json("workers"), run("recover")]);
  assert.equal((workers.value as { workers: { known: string }[] }).workers[0]?.known, "silent");
  assert.match(
    first.stdout,
    /^No worker is dead; nothing was recovered\.\n1 worker is silent but not proved dead .*outlive recover --wait\n$/,
  );
  const waited = await run("recover", "--wait");
  assert.equal(waited.code, 0);
  assert.match(waited.stderr, /^Watching 1 silent worker for 1s: /);
  assert.match(waited.stdout, /slow-1: queued again \(contact lost, not counted\)/);
  assert.equal((await engine.get("slow-1"))?.state, "queued");
});

test("a process frozen inside a transaction is named by status", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await place.ledger(engine);
  await engine.operator.enqueueByName("transfer", { n: 1 });
  const frozen = place.child({ only: ["transfer"], killAt: "before:INSERT INTO ledger", freeze: true });
  await frozen.untilFact("started");
  await untilTrue(
    () => readFileSync(`/proc/${frozen.pid}/stat`, "utf8").split(") ")[1]![0],
    (state) => state === "T",
    "it is frozen",
  );
  const { code, value } = await cliOn(t, place.url).json("status", "--check");
  assert.equal(code, 1);
  const { store, advice } = value as { store: { blockedBy: { pid: number } }; advice: { code: string }[] };
  assert.equal(store.blockedBy.pid, frozen.pid);
  assert.deepEqual(
    advice.map((one) => one.code),
    ["store-blocked"],
  );
});

function withoutTimes(text: string): string {
  return text
    .replaceAll(/\d{4}-\d\d-\d\d [\d:]+Z/g, "T")
    .replaceAll(/\b[\d.]+(?:ms|s|m)\b/g, "A")
    .replace(/\(pid \d+ on \S+, \S+\)/, "(pid P on H, V)")
    .replace(/\(pid \d+, start ticks \d+, [^)]+\)/, "(pid P, start ticks N, NS)");
}
