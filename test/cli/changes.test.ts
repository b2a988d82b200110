// `retry`, `cancel` and `quarantine release`: by ids and by filters, with their exit codes and the forms of their JSON.
import assert from "node:assert/strict";
import { test } from "node:test";
import { type Engine, job } from "../../src/index.ts";
import { cliOn, shapeOf } from "../support/cli.ts";
import { Place, untilState } from "../support/processes.ts";
import { JOB } from "./shapes.ts";

const broken = job<{ n: number }>("broken", { retry: { attempts: 1 } });
broken.handle((input) => {
  throw new Error(`number ${input.n} is odd`);
});
const mail = job<{ n: number }>("mail");

async function withDead(engine: Engine, many: number): Promise<void> {
  for (let n = 0; n < many; n++) await engine.enqueue(broken, { n }, { id: `broken-${n}` });
  const worker = await engine.start({ only: [broken] });
  for (let n = 0; n < many; n++) await untilState(engine, `broken-${n}`, "dead");
  await worker.stop();
}

test("retry by ids: each is reported, and one that can't be retried does not stop the others", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: [broken, mail] });
  await withDead(engine, 3);
  await engine.enqueue(mail, { n: 1 }, { id: "queued" });
  const { run, json } = cliOn(t, place.url);
  const both = await json("retry", "broken-0", "missing", "queued");
  assert.equal(both.code, 3, "the first failure's code");
  const { jobs, ...rest } = both.value as { jobs: { id: string; state?: string; error?: { code: string } }[] };
  assert.deepEqual(rest, { change: "retry", changed: 1, failed: 2 });
  assert.deepEqual(
    jobs.map(({ id, state, error }) => [id, state ?? error?.code]),
    [
      ["broken-0", "queued"],
      ["missing", "NOT_FOUND"],
      ["queued", "WRONG_STATE"],
    ],
  );
  const wrong = await run("retry", "queued");
  assert.equal(wrong.code, 4);
  assert.match(
    wrong.stdout,
    /1 job could not be changed:\n {2}Job queued is queued; .*Only finished jobs can be retried\./,
  );
  const fine = await run("retry", "broken-1");
  assert.deepEqual([fine.code, fine.stdout], [0, "1 job queued again.\n"]);
});

test("retry by a filter says how many and wants --yes", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: [broken, mail] });
  await withDead(engine, 5);
  const { run, json } = cliOn(t, place.url);
  const [asked, byText, nothing, neither, both, kind] = await Promise.all([
    run("retry", "--state", "dead", "--kind", "broken"),
    json("retry", "--text", "number 3"),
    run("retry", "--kind", "mail"),
    run("retry"),
    run("retry", "broken-1", "--all"),
    run("retry", "--kind", "brokn"),
  ]);
  assert.deepEqual(
    [asked.code, asked.stderr],
    [2, "outlive: This would retry 5 jobs; nothing was changed.\n  Add --yes to do it.\n"],
  );
  assert.equal(byText.code, 2);
  assert.deepEqual((byText.value as { error: { data: object } }).error.data, {
    change: "retry",
    found: 1,
    more: false,
  });
  assert.match(nothing.stderr, /This would retry 0 jobs; nothing was changed\.\n {2}Widen the filter\.\n/);
  assert.deepEqual([neither.code, both.code, kind.code], [2, 2, 3]);
  assert.match(neither.stderr, /No jobs to retry were given\.\n {2}Give ids, or a filter/);
  assert.match(kind.stderr, /Did you mean broken\?/);
  assert.equal((await engine.counts())[0]?.dead, 5, "nothing was changed");

  const one = await json("retry", "--text", "number 3", "--yes");
  assert.deepEqual([one.code, one.value], [0, { change: "retry", changed: 1, failed: 0, jobs: [] }]);
  const all = await run("retry", "--all", "--yes");
  assert.equal(all.stdout, "4 jobs queued again.\n");
  assert.equal((await engine.counts())[0]?.dead, 0);
});

test("cancel: queued ones at once, running ones by their signal, thousands by pages", async (t) => {
  const place = new Place(t);
  const { promise: release, resolve } = Promise.withResolvers<void>();
  const slow = job<null>("slow", { grace: "0ms" }).handle(() => release);
  const engine = await place.engine({ jobs: [mail, slow] });
  await engine.enqueueMany(
    mail,
    Array.from({ length: 2_500 }, (_, n) => ({ n })),
  );
  await engine.enqueue(slow, null, { id: "running" });
  await engine.start({ only: [slow] });
  await untilState(engine, "running", "running");
  const { run, json } = cliOn(t, place.url);
  const asked = await run("cancel", "--all");
  assert.match(asked.stderr, /This would cancel 2,501 jobs/);
  const mails = await json("cancel", "--kind", "mail", "--yes");
  assert.deepEqual(mails.value, { change: "cancel", changed: 2_500, failed: 0, jobs: [] });
  const one = await run("cancel", "running");
  assert.match(one.stdout, /signals of running jobs were aborted/);
  await untilState(engine, "running", "cancelled");
  assert.equal((await run("cancel", "running")).code, 4);
  resolve();
});

test("quarantined jobs are listed with their incident, and released", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.operator.enqueueByName("poison", { how: "SIGKILL" });
  for (let crash = 0; crash < 10 && (await engine.get(id))!.state !== "quarantined"; crash++) {
    await place.child({ only: ["poison"], concurrency: 1 }).exited;
    await engine.operator.recover();
  }
  const { run, json } = cliOn(t, place.url);
  const [listed, text, check, why] = await Promise.all([
    json("quarantine", "list"),
    run("quarantine", "list"),
    run("status", "--check"),
    run("why", id),
  ]);
  assert.deepEqual(shapeOf(listed.value), {
    jobs: [
      {
        ...JOB,
        startedAt: "string",
        deadlineAt: "string",
        finishedAt: "string",
        worker: "string",
        lastOutcome: "string",
        error: { name: "string", message: "string" },
        incident: "string",
        reason: "string",
      },
    ],
    next: "null",
  });
  const { incident } = (listed.value as { jobs: { incident: string }[] }).jobs[0]!;
  assert.match(text.stdout, new RegExp(`\n${id} +poison .* ${incident} +its worker died`));
  assert.equal(check.code, 1);
  assert.match(
    check.stdout,
    /! 1 job is quarantined \(.* ago\): its worker died while it ran alone\.\n {2}outlive quarantine list/,
  );
  assert.match(why.stdout, new RegExp(`is quarantined\n.*\nNext: outlive incident ${incident}; .*release ${id}\n$`));

  const wrong = await run("quarantine", "release", "no-such");
  assert.equal(wrong.code, 3);
  const asked = await run("quarantine", "release", "--all");
  assert.deepEqual([asked.code, /would release 1 job;/.test(asked.stderr)], [2, true]);
  const released = await json("quarantine", "release", id);
  assert.deepEqual(released.value, { change: "release", changed: 1, failed: 0, jobs: [{ id, state: "queued" }] });
  assert.equal((await run("quarantine", "release", id)).code, 4);
});

test("promote, remove, retry --input, pause --until and audit, each with its actor and reason", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: [broken, mail] });
  await withDead(engine, 2);
  await engine.enqueue(mail, { n: 1 }, { id: "delayed", delay: "1h" });
  const { run, json } = cliOn(t, place.url);
  const promoted = await json("promote", "delayed", "--actor", "ann", "--reason", "wanted now");
  assert.deepEqual(promoted.value, {
    change: "promote",
    changed: 1,
    failed: 0,
    jobs: [{ id: "delayed", state: "queued" }],
  });
  const edited = await json("retry", "broken-0", "--input", '{"n":2}');
  assert.deepEqual(edited.value, {
    change: "retry",
    changed: 1,
    failed: 0,
    jobs: [{ id: "broken-0", state: "queued" }],
  });
  assert.deepEqual((await engine.get("broken-0"))?.input, { n: 2 });
  assert.equal((await run("retry", "--input", "{}")).code, 2);
  const removed = await json("remove", "broken-1");
  assert.deepEqual(removed.value, {
    change: "remove",
    changed: 1,
    failed: 0,
    jobs: [{ id: "broken-1", state: "removed" }],
  });
  const asked = await run("remove", "--kind", "broken", "--state", "queued");
  assert.match(asked.stderr, /This would remove 1 job; nothing was changed/);
  const paused = await json("pause", "mail", "--until", "2h", "--reason", "the provider is down", "--actor", "bob");
  const { pause, ...rest } = paused.value as { pause: { by: string; reason: string; until: string } };
  assert.deepEqual(rest, { kind: "mail", paused: true });
  assert.deepEqual(
    [pause.by, pause.reason, pause.until > new Date().toISOString()],
    ["bob", "the provider is down", true],
  );
  const [why, status] = await Promise.all([run("why", "delayed"), run("status")]);
  assert.match(why.stdout, /paused by bob since .* more: the provider is down/);
  assert.match(status.stdout, /mail is paused \(the provider is down\) by bob until/);
  await run("resume", "mail");
  const audit = await json("audit", "--limit", "4");
  const { entries, next } = audit.value as { entries: Record<string, unknown>[]; next: string };
  assert.deepEqual(
    entries.map(({ action, target, count }) => [action, target, count]),
    [
      ["resume", "kind mail", 1],
      ["pause", "kind mail", 1],
      ["remove", "job broken-1", 1],
      ["edit", "job broken-0", 1],
    ],
  );
  assert.match(String(entries[0]?.["actor"]), /^cli\/.+@.+/);
  const rest2 = await run("audit", "--after", next);
  assert.match(rest2.stdout, /ann +promote +1 +job delayed +wanted now/);
});
