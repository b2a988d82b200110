// What people change, as a program does it: pauses with an end, expiry, promotion, removal, retention, bulk changes, edited inputs, the audit; and what a web
// process can wait for.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { z } from "zod";
import { connect } from "../../src/client.ts";
import { batch, type Engine, ErrorCode, job } from "../../src/index.ts";
import { Place, untilState } from "../support/processes.ts";
import { memory, says } from "./engines.ts";

const mail = job<{ n: number }>("mail").handle(({ n }) => n);
const broken = job<{ n: number }>("broken", { retry: { attempts: 1 } }).handle(({ n }) => {
  throw new Error(`number ${n}`);
});

async function withDead(engine: Engine, many: number): Promise<void> {
  for (let n = 0; n < many; n++) await engine.enqueue(broken, { n }, { id: `broken-${n}` });
  await engine.runUntilIdle({ only: [broken] });
}

test("a pause has a reason, an actor and an end; why says so, and the audit keeps both it and the resume", async (t) => {
  const engine = await memory(t, [mail]);
  const { id } = await engine.enqueue(mail, { n: 1 });
  const until = new Date(Date.now() + 3_600_000);
  await engine.pause(mail, { reason: "the provider is down", actor: "ann", until });
  const why = await engine.why(id);
  assert.equal(why?.because, "paused");
  assert.match(why?.text ?? "", /paused by ann since .*, for .* more: the provider is down\.$/);
  assert.deepEqual([why?.details["by"], why?.details["until"]], ["ann", until.getTime()]);
  await engine.resume(mail, { actor: "bob" });
  const audit = await engine.audit();
  assert.deepEqual(
    audit.map(({ actor, action, target, reason, count }) => [actor, action, target, reason, count]),
    [
      ["bob", "resume", "kind mail", null, 1],
      ["ann", "pause", "kind mail", "the provider is down", 1],
    ],
  );
  await engine.pause(mail, { until: "20ms" });
  await engine.start();
  assert.equal(await engine.result(id), 1, "it ends although no process resumes it");
  await assert.rejects(engine.pause("nothing"), says(ErrorCode.notFound, "nothing"));
  await assert.rejects(engine.pause(mail, { reason: "" }), says(ErrorCode.keyInvalid, "reason"));
});

test("a job that is not begun in time expires: by its own time, or that of its kind, which an enqueue may override", async (t) => {
  const brief = job<null>("brief", { expires: "1ms" }).handle(() => "ran");
  const engine = await memory(t, [brief, mail]);
  const { id } = await engine.enqueue(brief, null);
  const { id: kept } = await engine.enqueue(brief, null, { expires: "never" });
  const { id: own } = await engine.enqueue(mail, { n: 1 }, { expires: "1h" });
  assert.match((await engine.why(own))?.text ?? "", /It expires in .* unless an attempt begins\.$/);
  await new Promise((resolve) => setTimeout(resolve, 5));
  await engine.runUntilIdle();
  const why = await engine.why(id);
  assert.deepEqual([why?.because, why?.state], ["expired", "cancelled"]);
  await assert.rejects(engine.result(id), says(ErrorCode.noResult, "no attempt had begun when the job expired"));
  assert.equal(await engine.result(kept), "ran");
  assert.equal(await engine.result(own), 1);
  await assert.rejects(engine.enqueue(mail, { n: 1 }, { expires: "0ms" }), says(ErrorCode.optionInvalid, "expires"));
  assert.throws(() => job("x", { expires: "4000d" }), says(ErrorCode.optionInvalid, "expires"));
  const ofBatch = { expires: "1h" } as object;
  assert.throws(() => batch("x", ofBatch), says(ErrorCode.optionInvalid, "blocks of a batch do not expire"));
  assert.throws(() => job("x", { retention: { deadd: "1d" } as never }), says(ErrorCode.optionInvalid, "deadd"));
});

test("a parent continues when its child expires or is removed, and finds out which", async (t) => {
  const child = job<null>("child").handle(() => null);
  const parent = job<string>("parent").handle(async (expires, run) => {
    const options = expires === "" ? { delay: "1h" as const } : { expires: expires as "1ms" };
    const { id } = await run.enqueue(child, null, options);
    const [awaited] = await run.wait([id]);
    return [awaited!.state, "error" in awaited! ? (awaited.error?.code ?? null) : null];
  });
  const engine = await memory(t, [child, parent]);
  await engine.start({ only: [parent], concurrency: 4 });
  const expired = await engine.enqueue(parent, "1ms");
  assert.deepEqual(await engine.result(expired.id), ["cancelled", "EXPIRED"]);
  const removing = await engine.enqueue(parent, "");
  await untilWaiting(engine, removing.id);
  const [one] = (await engine.list({ parent: removing.id })).jobs;
  await engine.remove(one!.id, { reason: "asked for by its owner" });
  assert.deepEqual(await engine.result(removing.id), ["cancelled", "REMOVED"]);
  assert.equal((await engine.get(one!.id))?.input, null, "the empty row is there for the replay of the parent");
  await engine.remove(one!.id);
  assert.equal(await engine.get(one!.id), null, "and can be removed now");
});

async function untilWaiting(engine: Engine, id: string): Promise<void> {
  for await (const event of engine.follow([id], { every: "10ms" })) if (event.type === "waiting") return;
}

test("a delayed job is promoted; what does not wait for a time is refused", async (t) => {
  const engine = await memory(t, [mail]);
  const { id } = await engine.enqueue(mail, { n: 7 }, { delay: "1d" });
  assert.equal(await engine.promote(id, { actor: "ann" }), "queued");
  await assert.rejects(engine.promote(id), says(ErrorCode.wrongState, id));
  await engine.runUntilIdle();
  assert.equal(await engine.result(id), 7);
  await assert.rejects(engine.promote(id), says(ErrorCode.wrongState, "succeeded"));
  await assert.rejects(engine.promote("none"), says(ErrorCode.notFound, "none"));
});

test("a finished job runs again with another input, which its schema checks, and without the steps of the former one", async (t) => {
  let computed = 0;
  const typed = job("typed", { input: z.object({ n: z.number() }), retry: { attempts: 1 } }).handle(
    async ({ n }, run) => {
      await run.step("once", () => ++computed);
      if (n < 0) throw new Error("negative");
      return n;
    },
  );
  const engine = await memory(t, [typed, mail]);
  const { id } = await engine.enqueue(typed, { n: -1 });
  await engine.runUntilIdle();
  await assert.rejects(engine.retry(id, { input: { n: "x" } }), says(ErrorCode.inputInvalid, "typed"));
  await engine.retry(id, { input: { n: 2 }, actor: "ann", reason: "it was wrong" });
  await engine.runUntilIdle();
  assert.deepEqual([await engine.result(id), computed], [2, 2]);
  const [entry] = await engine.audit({ job: id });
  assert.deepEqual([entry?.action, entry?.actor, entry?.reason], ["edit", "ann", "it was wrong"]);
});

test("a new input with other keys than the job counts against is refused", async (t) => {
  const limited = job<{ who: string }>("limited", { limits: [{ name: "who", key: ({ who }) => who, running: 1 }] });
  limited.handle(() => null);
  const engine = await memory(t, [limited]);
  const { id } = await engine.enqueue(limited, { who: "a" });
  await engine.runUntilIdle();
  await assert.rejects(engine.retry(id, { input: { who: "b" } }), says(ErrorCode.inputInvalid, "other limit keys"));
  assert.equal(await engine.retry(id, { input: { who: "a" } }), "queued");
});

test("a bulk change counts in a dry run, reports progress, lists what failed, and is one entry of the audit", async (t) => {
  const engine = await memory(t, [mail, broken]);
  await withDead(engine, 250);
  await engine.enqueue(broken, { n: 1 }, { id: "holder", dedupeKey: "k", delay: "1h" });
  const dry = await engine.bulk("retry", { kind: "broken" }, { dryRun: true });
  assert.deepEqual([dry.found, dry.changed, dry.audit], [250, 0, null]);
  assert.equal((await engine.counts()).find(({ kind }) => kind === "broken")?.dead, 250);
  const seen: number[] = [];
  const done = await engine.bulk(
    "retry",
    { kind: "broken" },
    { actor: "ann", reason: "fixed", onProgress: ({ changed }, ids) => seen.push(changed, ids.length) },
  );
  assert.deepEqual([done.found, done.changed, done.failed, done.complete], [250, 250, 0, true]);
  assert.deepEqual(seen, [100, 100, 200, 100, 250, 50]);
  const [entry, ...more] = await engine.audit();
  assert.deepEqual(
    [entry?.id, entry?.count, entry?.target, entry?.reason, more],
    [done.audit, 250, 'jobs kind="broken"', "fixed", []],
  );
  assert.equal((await engine.bulk("promote", {})).changed, 1);
  const removed = await engine.bulk("remove", { state: "queued", kind: "broken" });
  assert.equal(removed.changed, 251);
  assert.deepEqual((await engine.list()).jobs, []);
});

test("a bulk retry lists the jobs that can't be retried, and says why; a signal ends it between two chunks", async (t) => {
  const engine = await memory(t, [mail]);
  for (const id of ["a", "b"]) {
    await engine.enqueue(mail, { n: 1 }, { id, dedupeKey: "k", delay: "1h" });
    await engine.cancel(id);
  }
  const { changed, failed, failures } = await engine.bulk("retry", { state: "cancelled" });
  assert.deepEqual([changed, failed, failures.map(({ id, code }) => [id, code])], [1, 1, [["a", "KEY_HELD"]]]);
  await engine.enqueueMany(
    mail,
    Array.from({ length: 300 }, (_, n) => ({ n })),
  );
  const stop = new AbortController();
  const stopped = await engine.bulk("cancel", {}, { signal: stop.signal, onProgress: () => stop.abort() });
  assert.deepEqual([stopped.changed, stopped.complete], [100, false]);
});

test("the answer of a request that is in a blob goes with the job that names it", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "outlive-blobs-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const { openBlobs } = await import("../../src/blobs/open.ts");
  const blobs = openBlobs(folder);
  const callback = job<{ blob: { blob: string; bytes: number; sha256: string } }>("callback");
  const engine = await memory(t, [callback], { blobs });
  const put = async (key: string): Promise<{ blob: { blob: string; bytes: number; sha256: string } }> => {
    const { size: bytes, sha256 } = await blobs.put(key, Buffer.from("secret"));
    return { blob: { blob: key, bytes, sha256 } };
  };
  await engine.enqueue(callback, await put("requests/one/1"), { id: "ours" });
  await engine.enqueue(callback, await put("mine/one"), { id: "users" });
  await engine.remove("ours");
  await engine.remove("users");
  await assert.rejects(Array.fromAsync(blobs.get("requests/one/1")), says(ErrorCode.blobNotFound));
  assert.equal(
    Buffer.concat(await Array.fromAsync(blobs.get("mine/one"))).toString(),
    "secret",
    "which is the user's own",
  );
});

test("a client changes jobs, waits for many, and follows them, while a worker of another process runs them", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ jobs: [mail, broken] });
  const client = await connect(place.url, { jobs: [mail, broken] });
  t.after(() => client.close());
  const ids = [];
  for (let n = 0; n < 3; n++) ids.push((await client.enqueue(mail, { n })).id);
  const { id: dead } = await client.enqueue(broken, { n: 9 });
  const { id: delayed } = await client.enqueue(mail, { n: 5 }, { delay: "1h" });
  const early = await client.wait([delayed], { timeout: "10ms" });
  assert.deepEqual(early, [{ id: delayed, state: "queued" }]);
  const types: string[] = [];
  const following = (async () => {
    for await (const event of client.follow([dead, delayed], { every: "20ms" }))
      types.push(`${event.id === dead ? "dead" : "delayed"} ${event.type}`);
  })();
  await engine.start();
  const ended = await client.wait([...ids, dead]);
  assert.deepEqual(
    ended.map((one) => (one.state === "succeeded" ? one.result : one.state)),
    [0, 1, 2, "dead"],
  );
  await client.promote(delayed);
  assert.equal(await client.result(delayed), 5);
  await following;
  assert.deepEqual([types.at(-1), types.includes("dead dead")], ["delayed succeeded", true]);
  await client.retry(dead, { actor: "web" });
  await untilState(engine, dead, "dead");
  await client.remove(dead);
  assert.deepEqual(await client.wait([dead, ...ids]), [
    { id: dead, state: "missing" },
    ...ids.map((id, n) => ({ id, state: "succeeded", result: n })),
  ]);
  const actions = (await client.audit()).map(({ actor, action }) => `${actor} ${action}`);
  assert.deepEqual(actions, ["operator remove", "web retry", "operator promote"]);
});
