// Parts of requests: the fetch of a handler as a step, canned answers, settings of the seed, limits of descriptors, what is shown.
import assert from "node:assert/strict";
import { test } from "node:test";
import { resolveConfig } from "../../src/engine/config.ts";
import { job } from "../../src/index.ts";
import { request } from "../../src/requests.ts";
import { assertDescriptors } from "../../src/requests/descriptors.ts";
import { Pacer } from "../../src/requests/pacer.ts";
import { shownRequest } from "../../src/requests/rendered.ts";
import { answers } from "../../src/testing/index.ts";
import { AT_ONCE, memory, says } from "../engine/engines.ts";
import { Receiver } from "./server.ts";

const retry = { attempts: 3, backoff: AT_ONCE } as const;

test("the fetch of a handler is a step: a later attempt gets the answer without a second call", async (t) => {
  const receiver = await Receiver.start(t, ({ body }, response) => response.end(`got ${body}`));
  const think = job("think", { retry });
  const bodies: string[] = [];
  think.handle(async (_, run) => {
    const fetch = run.fetch({ ifUnknown: "fail", addresses: "any" });
    const response = await fetch(`${receiver.url}/x`, { method: "POST", body: "question" });
    bodies.push(`${response.status} ${await response.text()}`);
    if (run.attempt === 1) throw new Error("after the call");
  });
  const engine = await memory(t, [think]);
  await engine.enqueue(think, null);
  await engine.runUntilIdle();
  assert.deepEqual(bodies, ["200 got question", "200 got question"]);
  assert.equal(receiver.received.length, 1);
});

test("an answer of 5xx is handed out and not kept, and a cut connection ends a job that must not send twice", async (t) => {
  const statuses: number[] = [];
  const receiver = await Receiver.start(t, ({ url }, response, raw) => {
    if (url === "/cut") raw.socket.destroy();
    else response.writeHead(statuses.length === 0 ? 503 : 200).end();
  });
  const think = job<{ path: string }>("think", { retry });
  think.handle(async ({ path }, run) => {
    const fetch = run.fetch({ ifUnknown: "fail", addresses: "any" });
    const { status } = await fetch(receiver.url + path, { method: "POST", body: "b" });
    statuses.push(status);
    if (status >= 500) throw new Error("later");
  });
  const engine = await memory(t, [think]);
  await engine.enqueue(think, { path: "/ok" });
  await engine.runUntilIdle();
  assert.deepEqual(statuses, [503, 200]);
  const { id } = await engine.enqueue(think, { path: "/cut" });
  await engine.runUntilIdle();
  const { state, error } = (await engine.get(id))!;
  assert.equal(state, "dead");
  assert.match(error!.message, /was sent, and its outcome is unknown/);
  const cuts = (): number => receiver.received.filter(({ url }) => url === "/cut").length;
  assert.equal(cuts(), 1);
  await engine.retry(id);
  await engine.runUntilIdle();
  assert.deepEqual([(await engine.get(id))!.state, cuts()], ["dead", 2], "a person who retries it decides to send it");
});

test("a handler that gives up on a call does not send it again: its outcome is unknown", async (t) => {
  const receiver = await Receiver.start(t, () => {});
  const think = job("think", { retry });
  think.handle(async (_, run) => {
    const call = run.fetch({ ifUnknown: "fail", addresses: "any" })(receiver.url, { method: "POST" });
    call.catch(() => {});
    if (run.attempt > 1) await call;
    await receiver.until(() => receiver.received.length > 0);
    throw new Error("took too long");
  });
  const engine = await memory(t, [think]);
  const { id } = await engine.enqueue(think, null);
  await engine.runUntilIdle();
  assert.match((await engine.get(id))!.error!.message, /was sent, and its outcome is unknown/);
  assert.equal(receiver.received.length, 1);
});

test("run.fetch asks for ifUnknown, gives each call a name of its own, and has canned answers in tests", async (t) => {
  const { network, sent } = answers({ "GET https://api.example/*": ["one", "two"] });
  const think = job("think", { retry: { attempts: 1 } });
  const got: string[] = [];
  think.handle(async (_, run) => {
    // @ts-expect-error ifUnknown is required
    assert.throws(() => run.fetch({}), says("OPTION_INVALID", "ifUnknown of run.fetch"));
    for (const fetch of [run.fetch({ ifUnknown: "fail" }), run.fetch({ ifUnknown: "resend" })])
      got.push(await (await fetch("https://api.example/x")).text());
  });
  const engine = await memory(t, [think], { network });
  const { id } = await engine.enqueue(think, null);
  await engine.runUntilIdle();
  assert.deepEqual([got, sent.length, (await engine.get(id))!.state], [["one", "two"], 2, "succeeded"]);
});

test("canned answers stand in place of the network, and requests and callbacks run as ever", async (t) => {
  const { network, sent } = answers({
    "POST https://api.example/*": [503, { json: { ok: true }, headers: { "content-type": "application/json" } }],
  });
  const call = request("call", {
    method: "POST",
    ifUnknown: "fail",
    response: "json",
    retry,
    send: (n) => ({ url: `https://api.example/${JSON.stringify(n)}` }),
  });
  const got: unknown[] = [];
  call.onResponse(({ body }) => void got.push(body));
  call.onError(({ message }) => void got.push(message));
  const engine = await memory(t, [call], { network });
  await engine.enqueue(call, 7);
  await engine.runUntilIdle();
  assert.deepEqual(got, [{ ok: true }]);
  assert.deepEqual(
    sent.map(({ method, url }) => `${method} ${url}`),
    ["POST https://api.example/7", "POST https://api.example/7"],
  );
});

test("HR-06 HR-07 the two settings of the seed are accepted: the interval sets heartbeat and sweep, the threshold the lease", () => {
  const leaves = (interval: number, threshold: number) => [
    { key: "heartbeat_interval", value: interval, source: "line 1" },
    { key: "orphan_threshold", value: threshold, source: "line 2" },
  ];
  const { engine: options } = resolveConfig({ config: leaves(60, 300), env: {}, call: [] });
  assert.deepEqual(options.heartbeat, { interval: "60s", sweep: "60s", lease: "300s" });
  assert.throws(
    () => resolveConfig({ config: leaves(60, 60), env: {}, call: [] }),
    says("OPTION_INVALID", "line 2", "shorter than two heartbeat intervals"),
  );
});

test("more requests in flight than the process may open files are refused when a worker starts", () => {
  assert.throws(() => assertDescriptors(900, 1_024), says("OPTION_INVALID", "900 requests", "concurrency", "824"));
  assertDescriptors(824, 1_024);
  assertDescriptors(1_000_000, null);
});

test("requests are opened twenty at a time, and none is left waiting", async () => {
  const pacer = new Pacer(setImmediate, () => 0);
  const opened: number[] = [];
  const all = Array.from({ length: 100 }, async (_, n) => {
    const turn = pacer.turn();
    if (turn) await turn;
    pacer.opened();
    opened.push(n);
  });
  await Promise.resolve();
  assert.equal(opened.length, 20);
  await Promise.all(all);
  assert.deepEqual(
    opened,
    Array.from({ length: 100 }, (_, n) => n),
  );
});

test("requests that find a connection are sent at once, until they have kept the event loop busy for a while", async () => {
  let mono = 0;
  const pacer = new Pacer(setImmediate, () => mono);
  for (let n = 0; n < 100; n++) assert.equal(pacer.turn(), undefined);
  mono += 5;
  const waiting = pacer.turn();
  assert.ok(waiting);
  await waiting;
  assert.equal(pacer.turn(), undefined);
});

test("a URL is shown without the values of its query", () => {
  const shown = (url: string): string => shownRequest({ method: "GET", url: new URL(url) });
  assert.equal(shown("https://x.example/a?token=1&b=2&b=3"), "GET https://x.example/a?token=...&b=...");
  assert.equal(shown("https://x.example/a"), "GET https://x.example/a");
  assert.ok(shown(`https://x.example/${"a".repeat(9_000)}`).length < 400);
});
