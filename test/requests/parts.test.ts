// Parts of requests: canned answers, settings of the seed, limits of descriptors, what is shown.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { test } from "node:test";
import { z } from "zod";
import { resolveConfig } from "../../src/engine/config.ts";
import { request, secret } from "../../src/requests.ts";
import { assertDescriptors } from "../../src/requests/descriptors.ts";
import { Pacer } from "../../src/requests/pacer.ts";
import { shownRequest } from "../../src/requests/rendered.ts";
import { Secrets } from "../../src/requests/secrets.ts";
import { answers } from "../../src/testing/index.ts";
import { AT_ONCE, memory, says } from "../engine/engines.ts";
import { Receiver } from "./server.ts";

const retry = { attempts: 3, backoff: AT_ONCE } as const;

test("HR-17 canned answers stand in place of the network, and requests and callbacks run as ever", async (t) => {
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

for (const ifUnknown of ["resend", "fail"] as const)
  test(`a canned answer that is missing or throws fails its request once, with an error that says so (${ifUnknown})`, async (t) => {
    const { network } = answers({
      "POST https://api.example/throws": () => {
        throw new Error("the test is wrong");
      },
    });
    const call = request("call", {
      input: z.string(),
      method: "POST",
      ifUnknown,
      retry,
      send: (path) => ({ url: `https://api.example/${path}` }),
    });
    const got: string[] = [];
    call.onError(({ input, is, attempts, message }) => void got.push(`${input}: ${is} after ${attempts}: ${message}`));
    const engine = await memory(t, [call], { network });
    await engine.enqueueMany(call, ["missing", "throws"]);
    await engine.runUntilIdle();
    const [missing, throws] = got.toSorted();
    assert.match(missing!, /^missing: refused after 1: .*no canned answer for POST https:\/\/api.example\/missing/);
    assert.match(throws!, /^throws: refused after 1: .*the test is wrong/);
  });

test("a network of the user's own that rejects leaves the outcome unknown, and the process goes on", async (t) => {
  const network = () => ({ ended: Promise.reject(new Error("no idea")), abort: () => {} });
  const call = request("call", {
    method: "POST",
    ifUnknown: "fail",
    retry,
    send: () => ({ url: "https://a.example" }),
  });
  const got: string[] = [];
  call.onError(({ is, message }) => void got.push(`${is}: ${message}`));
  const engine = await memory(t, [call], { network });
  await engine.enqueue(call, null);
  await engine.runUntilIdle();
  assert.match(got.join(), /^unknown: .*no idea/);
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

test("more requests in flight than a process may open files are refused, with what would fit", () => {
  assert.throws(() => assertDescriptors(900, 1_024), says("OPTION_INVALID", "900 requests", "concurrency", "824"));
  assertDescriptors(824, 1_024);
  assertDescriptors(1_000_000, null);
});

test("a worker with more requests in flight than its process may open files does not start", () => {
  const program = `
    import { open } from ${JSON.stringify(new URL("../../src/index.ts", import.meta.url).href)};
    import { request } from ${JSON.stringify(new URL("../../src/requests.ts", import.meta.url).href)};
    const call = request("call", { method: "GET", send: () => ({ url: "https://example.com" }) });
    const engine = await open("sqlite::memory:", { jobs: [call], logger: false });
    await engine.start().catch(({ code, message }) => console.log(code, message));
    console.log((await engine.workers({ which: "all" })).length, "workers");
    await engine.close();`;
  const node = [process.execPath, "--disable-warning=ExperimentalWarning", "--input-type=module", "-e", program];
  const said = execFileSync("sh", ["-c", 'ulimit -n 300 && exec "$@"', "sh", ...node], { encoding: "utf8" });
  assert.match(said, /^OPTION_INVALID .*256 requests in flight, and this process may open 300 files.*\n0 workers\n$/);
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

const PACED = {
  "with a secret": { headers: { authorization: secret("KEY") } },
  "signed by a function": { sign: async () => ({ "x-signature": "s" }) },
  'that are marked, because of "fail"': {},
} as const;
for (const [what, sent] of Object.entries(PACED))
  test(`200 requests ${what} open at most twenty connections in one turn of the event loop`, async (t) => {
    const receiver = await Receiver.start(t, (_, response) => response.end());
    let opened = 0;
    const ofTurns: number[] = [];
    const count = (): void => void opened++;
    // Before what the pacer does in the same turn.
    let turn = setImmediate(function ended() {
      if (opened > 0) ofTurns.push(opened);
      opened = 0;
      turn = setImmediate(ended);
    });
    t.after(() => clearImmediate(turn));
    subscribe("undici:client:beforeConnect", count);
    t.after(() => unsubscribe("undici:client:beforeConnect", count));
    const call = request("call", {
      method: "POST",
      ifUnknown: Object.keys(sent).length === 0 ? "fail" : "resend",
      addresses: "any",
      send: (n) => ({ url: receiver.url, json: n, ...sent }),
    });
    const engine = await memory(t, [call], { secrets: { KEY: "k" } });
    await engine.enqueueMany(
      call,
      Array.from({ length: 200 }, (_, n) => n),
    );
    await engine.runUntilIdle();
    assert.equal(receiver.received.length, 200);
    assert.ok(ofTurns.length >= 2 && Math.max(...ofTurns) <= 20, `opened in each turn: ${ofTurns.join(" ")}`);
  });

test("many requests that need a value again when its minute has passed ask its source once", async () => {
  let mono = 0;
  let asked = 0;
  const source = async (): Promise<string> => `value ${++asked}`;
  const secrets = new Secrets({ KEY: source }, () => mono);
  const all = (): Promise<string[]> => Promise.all(Array.from({ length: 100 }, () => secrets.value(secret("KEY"))));
  assert.deepEqual(new Set(await all()), new Set(["value 1"]));
  mono += 61_000;
  assert.deepEqual(new Set(await all()), new Set(["value 2"]));
});

test("a secret whose source failed is asked for again by the next request", async () => {
  let asked = 0;
  const source = (): string => {
    if (++asked === 1) throw new Error("not now");
    return "value";
  };
  const secrets = new Secrets(source, () => 0);
  await assert.rejects(secrets.value(secret("KEY")), says("SECRET_MISSING", "its function failed"));
  assert.equal(await secrets.value(secret("KEY")), "value");
});

test("a secret whose source never settles is asked for again by requests that come later", async () => {
  let mono = 0;
  let asked = 0;
  const source = (): string | Promise<string> => (++asked === 1 ? new Promise(() => {}) : "value");
  const secrets = new Secrets(source, () => mono);
  void secrets.value(secret("KEY"));
  mono += 5_001;
  assert.equal(await secrets.value(secret("KEY")), "value");
});

test("a URL is shown without the values of its query", () => {
  const shown = (url: string): string => shownRequest({ method: "GET", url: new URL(url) });
  assert.equal(shown("https://x.example/a?token=1&b=2&b=3"), "GET https://x.example/a?token=...&b=...");
  assert.equal(shown("https://x.example/a"), "GET https://x.example/a");
  assert.ok(shown(`https://x.example/${"a".repeat(9_000)}`).length < 400);
});
