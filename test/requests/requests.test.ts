// Requests end to end in one process: what is sent, what comes back, and what follows.
import assert from "node:assert/strict";
import { createHash, createHmac, randomBytes } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type AddressInfo, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { z } from "zod";
import { openBlobs } from "../../src/blobs.ts";
import type { RequestFailure, ResponseOf, UnknownOutcome } from "../../src/requests.ts";
import { ErrorCode, TerminalError } from "../../src/index.ts";
import { request, secret, type Sent, standardWebhooks } from "../../src/requests.ts";
import { AT_ONCE, memory, says } from "../engine/engines.ts";
import { Receiver } from "./server.ts";

const LOCAL = { addresses: "any", retry: { attempts: 3, backoff: AT_ONCE } } as const;

test("a request is sent once, and its answer comes to onResponse with its input, typed", async (t) => {
  const receiver = await Receiver.start(t, (_, response) => {
    response.setHeader("content-type", "application/json");
    response.end(JSON.stringify({ output: "short" }));
  });
  const summarize = request("summarize", {
    input: z.object({ doc: z.string() }),
    response: z.object({ output: z.string() }),
    method: "POST",
    ifUnknown: "resend",
    send: ({ doc }) => ({
      url: `${receiver.url}/v1?a=1`,
      headers: { authorization: secret("KEY", { prefix: "Bearer " }) },
      query: { b: 2 },
      json: { doc },
    }),
    ...LOCAL,
  });
  const got: ResponseOf<{ doc: string }, { output: string }>[] = [];
  summarize.onResponse((response) => void got.push(response));
  const engine = await memory(t, [summarize], { secrets: { KEY: () => "s3cret" } });
  const { id } = await engine.enqueue(summarize, { doc: "long" });
  await engine.runUntilIdle();
  assert.equal(receiver.received.length, 1);
  const [{ method, url, headers, body }] = receiver.received as [(typeof receiver.received)[0]];
  assert.deepEqual([method, url, body], ["POST", "/v1?a=1&b=2", '{"doc":"long"}']);
  assert.equal(headers["authorization"], "Bearer s3cret");
  assert.equal(headers["idempotency-key"], `${id}:request`);
  assert.equal(headers["x-request-id"], `${id}-1`);
  assert.equal(headers["content-type"], "application/json");
  const [response] = got;
  assert.deepEqual(
    [response?.status, response?.body.output, response?.input.doc, response?.requestId, response?.attempts],
    [200, "short", "long", id, 1],
  );
  const job = (await engine.get(id))!;
  assert.equal(job.state, "succeeded");
  assert.equal((job.result as { status: number }).status, 200);
  assert.equal((await engine.get(`${id}.response.1`))?.state, "succeeded", "the callback is a job of its own");
});

test("answers that may be sent again are, with the same idempotency key, and the last one counts", async (t) => {
  let count = 0;
  const receiver = await Receiver.start(t, (_, response) => {
    response.statusCode = ++count < 3 ? 503 : 200;
    response.end("fine");
  });
  const call = request("call", { method: "POST", ifUnknown: "fail", send: () => ({ url: receiver.url }), ...LOCAL });
  const got: string[] = [];
  call.onResponse(({ body }) => void got.push(body));
  const engine = await memory(t, [call]);
  const { id } = await engine.enqueue(call, null);
  await engine.runUntilIdle();
  assert.deepEqual(got, ["fine"]);
  assert.deepEqual(
    new Set(receiver.received.map(({ headers }) => headers["idempotency-key"])),
    new Set([`${id}:request`]),
  );
  assert.deepEqual(
    receiver.received.map(({ headers }) => headers["x-request-id"]),
    [1, 2, 3].map((n) => `${id}-${n}`),
  );
});

test("a request that fails for good comes to onError, once, with the status and the beginning of the body", async (t) => {
  const receiver = await Receiver.start(t, (_, response) => {
    response.statusCode = 404;
    response.end("no such thing");
  });
  const call = request("call", { method: "GET", send: () => ({ url: receiver.url }), ...LOCAL });
  const got: RequestFailure[] = [];
  call.onError((failure) => void got.push(failure));
  const engine = await memory(t, [call]);
  const { id } = await engine.enqueue(call, { a: 1 });
  await engine.runUntilIdle();
  assert.equal(receiver.received.length, 1);
  assert.deepEqual(
    got.map(({ is, status, body, input, requestId }) => [is, status, body, input, requestId]),
    [["status", 404, "no such thing", { a: 1 }, id]],
  );
  assert.equal((await engine.get(id))?.state, "dead");
});

/** A server that takes the request and closes the connection without an answer. */
async function cutting(t: { after: (end: () => void) => void }): Promise<{ url: string; count: () => number }> {
  let count = 0;
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.once("data", () => {
      count++;
      socket.destroy();
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, count: () => count };
}

test("HR-13 a connection that breaks after sending: `resend` sends again, `fail` does not, `ask` asks", async (t) => {
  const { url, count } = await cutting(t);
  const failures: RequestFailure[] = [];
  const asked: UnknownOutcome[] = [];
  const answered: ResponseOf[] = [];
  const again = request("again", { method: "POST", ifUnknown: "resend", send: () => ({ url }), ...LOCAL });
  const never = request("never", { method: "POST", ifUnknown: "fail", send: () => ({ url }), ...LOCAL });
  const ask = request("ask", { method: "POST", ifUnknown: "ask", response: "json", send: () => ({ url }), ...LOCAL });
  never.onError((failure) => void failures.push(failure));
  ask.onUnknown((unknown) => {
    asked.push(unknown);
    return asked.length === 1 ? "resend" : { status: 201, body: { found: true } };
  });
  ask.onResponse((response) => void answered.push(response));
  const engine = await memory(t, [again, never, ask]);
  const ids = [await engine.enqueue(again, 1), await engine.enqueue(never, 2), await engine.enqueue(ask, 3)].map(
    ({ id }) => id,
  );
  await engine.runUntilIdle();
  const states = await Promise.all(ids.map(async (id) => (await engine.get(id))?.state));
  assert.deepEqual(states, ["dead", "dead", "succeeded"]);
  assert.deepEqual(
    failures.map(({ is }) => is),
    ["unknown"],
  );
  assert.deepEqual(
    asked.map(({ input, idempotencyKey }) => [input, idempotencyKey]),
    [
      [3, `${ids[2]}:request`],
      [3, `${ids[2]}:request`],
    ],
  );
  assert.deepEqual(
    answered.map(({ status, body }) => [status, body]),
    [[201, { found: true }]],
  );
  assert.equal(count(), 3 + 1 + 2);
});

test("what was never sent is sent, whatever the policy", async (t) => {
  const failures: string[] = [];
  // Nothing listens there.
  const call = request("call", {
    method: "POST",
    ifUnknown: "fail",
    send: () => ({ url: "http://127.0.0.1:1" }),
    ...LOCAL,
  });
  call.onError(({ is, attempts }) => void failures.push(`${is} ${attempts}`));
  const engine = await memory(t, [call]);
  await engine.enqueue(call, null);
  await engine.runUntilIdle();
  assert.deepEqual(failures, ["network 3"]);
});

test("a POST must say what is done if nobody knows", () => {
  assert.throws(
    // @ts-expect-error ifUnknown is required for POST
    () => request("pay", { method: "POST", send: () => ({ url: "https://example.com" }) }),
    says("OPTION_INVALID", "ifUnknown of pay", "resend"),
  );
});

test('"ask" without a handler is refused when a worker starts', async (t) => {
  const pay = request("pay", { method: "POST", ifUnknown: "ask", send: () => ({ url: "https://example.com" }) });
  const engine = await memory(t, [pay]);
  await assert.rejects(engine.start(), says("OPTION_INVALID", "pay", "onUnknown"));
});

// ---- keys

/** Kinds that send to the receiver, whatever their input, with these options of keys. */
const keyed = (url: string, options: object) =>
  request("keyed", {
    input: z.object({ key: z.string(), n: z.number() }),
    method: "PUT",
    send: ({ n }) => ({ url, json: n }),
    key: ({ key }) => key,
    ...LOCAL,
    ...options,
  });

test("at most this many requests of a key are in flight, and others go on", async (t) => {
  let now = 0;
  let most = 0;
  const receiver = await Receiver.start(t, (_, response) => {
    most = Math.max(most, ++now);
    setTimeout(() => {
      now--;
      response.end();
    }, 10);
  });
  const call = keyed(receiver.url, { limit: { inFlight: 2 } });
  const engine = await memory(t, [call]);
  await engine.enqueueMany(
    call,
    Array.from({ length: 12 }, (_, n) => ({ key: "a", n })),
  );
  await engine.runUntilIdle();
  assert.equal(receiver.received.length, 12);
  assert.equal(most, 2);
});

test("in strict order a failing request holds back those of its key only", async (t) => {
  const failed = new Map<string, number>();
  const receiver = await Receiver.start(t, ({ body }, response) => {
    const tries = (failed.get(body) ?? 0) + 1;
    failed.set(body, tries);
    response.statusCode = tries < 3 && Number(body) % 3 === 0 ? 503 : 200;
    response.end();
  });
  const call = keyed(receiver.url, { order: "strict" });
  const engine = await memory(t, [call]);
  await engine.enqueueMany(
    call,
    Array.from({ length: 20 }, (_, n) => ({ key: n % 2 === 0 ? "even" : "odd", n })),
  );
  await engine.runUntilIdle();
  for (const rest of [0, 1]) {
    const order = receiver.received.map(({ body }) => Number(body)).filter((n) => n % 2 === rest);
    assert.deepEqual(
      order,
      order.toSorted((a, b) => a - b),
    );
  }
  assert.equal(new Set(receiver.received.map(({ body }) => body)).size, 20);
});

test("Retry-After pauses the whole key, and costs those that wait no attempt", async (t) => {
  let first = true;
  const at: number[] = [];
  const receiver = await Receiver.start(t, (_, response) => {
    at.push(performance.now());
    response.writeHead(first ? 429 : 200, first ? { "retry-after": "1" } : {}).end();
    first = false;
  });
  const call = keyed(receiver.url, { limit: { inFlight: 1 } });
  const engine = await memory(t, [call]);
  const others = [];
  for (let n = 0; n < 3; n++) others.push((await engine.enqueue(call, { key: "a", n })).id);
  const worker = await engine.start();
  await receiver.until(() => receiver.received.length === 4);
  await Promise.all(others.map((id) => engine.result(id)));
  await worker.stop();
  assert.ok(at[1]! - at[0]! >= 900, `the next was sent after ${at[1]! - at[0]!} ms`);
  const counters = await Promise.all(others.map(async (id) => (await engine.get(id))!.counters));
  assert.deepEqual(
    counters.map(({ errors }) => errors).toSorted((a, b) => a - b),
    [0, 0, 1],
  );
});

test("a circuit opens after failures in a row and is a pause in the store", async (t) => {
  const receiver = await Receiver.start(t, (_, response) => response.writeHead(500).end());
  const call = keyed(receiver.url, { breaker: { failures: 3, pause: "1m" }, limit: { inFlight: 1 } });
  const opened: object[] = [];
  const engine = await memory(t, [call]);
  engine.on("request.circuit", (event) => opened.push(event));
  for (let n = 0; n < 5; n++) await engine.enqueue(call, { key: "a", n });
  const worker = await engine.start();
  await receiver.until(() => receiver.received.length === 3);
  while (opened.length === 0) await new Promise((resolve) => setImmediate(resolve));
  const state = await engine.limits.get("keyed", "a");
  assert.ok(state.heldOffUntil! > Date.now() + 30_000);
  await worker.stop();
  assert.equal(receiver.received.length, 3);
  assert.deepEqual(opened, [{ kind: "keyed", key: "a", pauseMs: 60_000 }]);
});

test("an endpoint that answers 410 is disabled until it is resumed", async (t) => {
  const receiver = await Receiver.start(t, (_, response) => response.writeHead(410).end());
  const call = keyed(receiver.url, { disable: {}, limit: { inFlight: 1 } });
  const engine = await memory(t, [call]);
  const disabled: string[] = [];
  engine.on("request.disabled", ({ key, reason }) => disabled.push(`${key}: ${reason}`));
  const first = await engine.enqueue(call, { key: "a", n: 1 });
  const second = await engine.enqueue(call, { key: "a", n: 2 });
  const worker = await engine.start();
  await assert.rejects(engine.result(first.id));
  assert.deepEqual(disabled, ["a: the endpoint returned 410"]);
  assert.match((await engine.limits.get("keyed", "a")).paused!.reason, /disabled: .*410/);
  assert.equal((await engine.get(second.id))?.state, "queued");
  await engine.limits.resume("keyed", "a");
  await assert.rejects(engine.result(second.id));
  await worker.stop();
});

test("why does not claim room for a request whose kind is full while another kind has room", async (t) => {
  const receiver = await Receiver.start(t, () => {});
  const full = request("full", { method: "PUT", ...LOCAL, send: () => ({ url: receiver.url }) });
  const idle = request("idle", { method: "PUT", ...LOCAL, send: () => ({ url: receiver.url }) });
  const engine = await memory(t, [full, idle]);
  for (const n of [1, 2]) await engine.enqueue(full, n);
  const worker = await engine.start({ concurrency: { full: 2, idle: 2 } });
  await receiver.until(() => receiver.received.length === 2);
  const { id } = await engine.enqueue(full, 3);
  const { because, text, next } = (await engine.why(id))!;
  assert.equal(because, "waiting-its-turn");
  assert.match(text, /no worker takes it while 2 of its kind run/);
  assert.match(next, /raise the concurrency of full/);
  await worker.stop({ grace: "0ms" });
});

// ---- signatures, large answers, what is shown

test("webhooks are signed as Standard Webhooks say, by two secrets while they are changed", async (t) => {
  const receiver = await Receiver.start(t, (_, response) => response.end());
  const key = (byte: number): string => `whsec_${Buffer.alloc(24, byte).toString("base64")}`;
  const deliver = request("deliver", {
    method: "POST",
    ifUnknown: "resend",
    ...LOCAL,
    send: (): Sent => ({
      url: receiver.url,
      json: { type: "paid" },
      sign: standardWebhooks(secret("NEW"), secret("OLD")),
    }),
  });
  const engine = await memory(t, [deliver], { secrets: { NEW: key(1), OLD: key(2) } });
  const { id } = await engine.enqueue(deliver, null);
  await engine.runUntilIdle();
  const [{ headers, body }] = receiver.received as [(typeof receiver.received)[0]];
  assert.equal(headers["webhook-id"], id);
  const content = `${id}.${String(headers["webhook-timestamp"])}.${body}`;
  const expected = [1, 2].map(
    (byte) => `v1,${createHmac("sha256", Buffer.alloc(24, byte)).update(content).digest("base64")}`,
  );
  assert.equal(headers["webhook-signature"], expected.join(" "));
});

test("a large answer goes to a blob, which is deleted when its callback has succeeded and not before", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "outlive-requests-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const content = Buffer.alloc(3 << 20, "y");
  const receiver = await Receiver.start(t, (_, response) => response.end(content));
  const blobs = openBlobs(folder);
  const fetched = request("fetched", {
    method: "GET",
    maxResponse: { to: "blob", max: "10MB" },
    ...LOCAL,
    send: () => ({ url: receiver.url }),
  });
  const seen: number[] = [];
  fetched.onResponse(async ({ blob, body }, run) => {
    assert.equal(body, null);
    let bytes = 0;
    for await (const chunk of blobs.get(blob!.blob)) bytes += chunk.length;
    seen.push(bytes);
    if (run.attempt === 1) throw new Error("not yet");
  });
  const engine = await memory(t, [fetched], { blobs });
  await engine.enqueue(fetched, null);
  const worker = await engine.start();
  const listed = async (): Promise<number> => (await Array.fromAsync(blobs.list(""))).length;
  await receiver.until(() => receiver.received.length === 1);
  while (seen.length < 2 || (await listed()) > 0) await new Promise((resolve) => setTimeout(resolve, 20));
  await worker.stop();
  assert.deepEqual(seen, [content.length, content.length], "the second attempt of the callback found it, too");
});

test("a blob of an attempt that did not end the request is deleted by the next one; that of an earlier success is not", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "outlive-requests-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const blobs = openBlobs(folder);
  const id = "fetched-1";
  const nameOf = (attempt: number): string =>
    `requests/${createHash("sha256").update(id).digest("hex").slice(0, 32)}/${attempt}`;
  const names = async (): Promise<string[]> => (await Array.fromAsync(blobs.list(""))).map(({ key }) => key).toSorted();
  const receiver = await Receiver.start(t, (_, response) => {
    const isFirst = receiver.received.length === 1;
    response.statusCode = isFirst ? 503 : 200;
    const end = (): void => void response.end(isFirst ? "" : Buffer.alloc(2 << 20, "y"));
    // As a process leaves it that is killed between the blob and the settlement.
    if (isFirst) void blobs.put(nameOf(1), Buffer.from("unused")).then(end);
    else end();
  });
  const fetched = request("fetched", {
    method: "GET",
    maxResponse: { to: "blob", max: "10MB" },
    ...LOCAL,
    send: () => ({ url: receiver.url }),
  });
  fetched.onResponse(() => {
    throw new TerminalError("it keeps its blob");
  });
  const engine = await memory(t, [fetched], { blobs });
  await engine.enqueue(fetched, null, { id });
  await engine.runUntilIdle();
  if ((await engine.get(id))!.state === "queued") await engine.promote(id);
  await engine.runUntilIdle();
  while ((await names()).length > 1) await new Promise((resolve) => setTimeout(resolve, 20));
  assert.deepEqual(await names(), [nameOf(2)]);
  // A person sends it again: the callback of the first success may still be retried, and needs its blob.
  await engine.retry(id);
  await engine.runUntilIdle();
  assert.deepEqual(await names(), [nameOf(2), nameOf(3)]);
});

test("blobs of all attempts since the request began are deleted, also those that the attempt after them did not delete", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "outlive-requests-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const blobs = openBlobs(folder);
  const nameOf = (attempt: number): string =>
    `requests/${createHash("sha256").update("fetched-1").digest("hex").slice(0, 32)}/${attempt}`;
  const none = async (): Promise<void> => {
    while ((await Array.fromAsync(blobs.list(""))).length > 0) await new Promise((resolve) => setImmediate(resolve));
  };
  const leave = async (): Promise<void> => {
    await none();
    // As if the second attempt had died before it deleted that of the first.
    if (receiver.received.length === 2)
      for (const attempt of [1, 2]) await blobs.put(nameOf(attempt), Buffer.from("unused"));
  };
  const receiver = await Receiver.start(t, (_, response) => {
    response.statusCode = receiver.received.length < 3 ? 503 : 200;
    void leave().then(() => response.end());
  });
  const fetched = request("fetched", {
    method: "GET",
    maxResponse: { to: "blob", max: "10MB" },
    ...LOCAL,
    send: () => ({ url: receiver.url }),
  });
  const engine = await memory(t, [fetched.onResponse(() => {})], { blobs });
  await engine.enqueue(fetched, null, { id: "fetched-1" });
  await engine.runUntilIdle();
  while ((await engine.get("fetched-1"))!.state === "queued") {
    await engine.promote("fetched-1");
    await engine.runUntilIdle();
  }
  assert.deepEqual([receiver.received.length, (await engine.get("fetched-1"))!.state], [3, "succeeded"]);
  await none();
});

test("a large answer that is not accepted goes to no blob, whatever its coding: its status decides, and its beginning is shown", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "outlive-requests-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const blobs = openBlobs(folder);
  const page = Buffer.alloc(2 << 20, "<p>busy</p>");
  const incompressible = randomBytes(2 << 20);
  const receiver = await Receiver.start(t, ({ url }, response) => {
    response.statusCode = url === "/busy" ? 503 : 400;
    if (url === "/coded") response.setHeader("content-encoding", "gzip");
    response.end(url === "/coded" ? gzipSync(incompressible) : page);
  });
  const failures: RequestFailure[] = [];
  const fetched = request("fetched", {
    input: z.string(),
    method: "GET",
    maxResponse: { to: "blob", max: "10MB" },
    ...LOCAL,
    send: (path) => ({ url: receiver.url + path }),
  })
    .onResponse(() => assert.fail("it is not accepted"))
    .onError((failure) => void failures.push(failure));
  const engine = await memory(t, [fetched], { blobs });
  for (const path of ["/busy", "/plain", "/coded"]) await engine.enqueue(fetched, path, { id: path });
  await engine.runUntilIdle();
  while ((await engine.get("/busy"))!.state === "queued") {
    await engine.promote("/busy");
    await engine.runUntilIdle();
  }
  assert.deepEqual(await Array.fromAsync(blobs.list("")), []);
  const of = (path: string): unknown[] => {
    const { status, body } = failures.find(({ input }) => input === path)!;
    return [status, body?.slice(0, 11)];
  };
  assert.deepEqual(
    [of("/busy"), of("/plain"), of("/coded")],
    [
      [503, "<p>busy</p>"],
      [400, "<p>busy</p>"],
      [400, ""],
    ],
  );
  assert.equal(receiver.received.filter(({ url }) => url === "/busy").length, 3, "a 503 is tried again");
});

test("a worker refuses a kind that keeps large responses in blobs and has no onResponse: nothing would delete them", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "outlive-requests-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const fetched = request("fetched", {
    method: "GET",
    maxResponse: { to: "blob", max: "10MB" },
    ...LOCAL,
    send: () => ({ url: "https://example.com" }),
  });
  const engine = await memory(t, [fetched], { blobs: openBlobs(folder) });
  await assert.rejects(
    async () => {
      await engine.start();
    },
    says(ErrorCode.optionInvalid, "fetched", "nothing reads or deletes them", "onResponse"),
  );
});

test("a worker that stops sends nothing twice: what was not sent is released, what was is asked about", async (t) => {
  const receiver = await Receiver.start(t, () => {});
  const asked: string[] = [];
  const call = request("call", { method: "POST", ifUnknown: "ask", ...LOCAL, send: () => ({ url: receiver.url }) });
  call.onUnknown(({ message }) => {
    asked.push(message);
    return "fail";
  });
  const engine = await memory(t, [call]);
  const { id } = await engine.enqueue(call, null);
  const worker = await engine.start();
  await receiver.until(() => receiver.received.length === 1);
  await worker.stop({ grace: "100ms" });
  await engine.runUntilIdle();
  assert.deepEqual(asked, ["its worker stopped while it waited for the response"]);
  assert.equal((await engine.get(id))?.state, "dead");
  assert.equal(receiver.received.length, 1);
});

test("a schema that throws while undici hands out the answer fails its own request, and the next one uses the same connection", async (t) => {
  const ports = new Set<number | undefined>();
  const receiver = await Receiver.start(t, (_, response) => {
    ports.add(response.socket?.remotePort);
    response.end("1");
  });
  const broken = new Error("the schema is broken");
  const validate = (value: unknown) => {
    if (receiver.received.length === 1) throw broken;
    return { value: value as number };
  };
  const call = request("call", {
    method: "GET",
    response: { "~standard": { version: 1, vendor: "test", validate } },
    send: () => ({ url: receiver.url }),
    ...LOCAL,
    retry: { attempts: 1 },
  });
  const engine = await memory(t, [call]);
  const { id: first } = await engine.enqueue(call, null);
  const { id: second } = await engine.enqueue(call, null);
  // The second one follows at once: a connection that is idle for seconds is closed.
  await engine.runUntilIdle({ concurrency: { call: 1 } });
  const [failed, succeeded] = [await engine.get(first), await engine.get(second)];
  assert.deepEqual([failed?.state, succeeded?.state], ["dead", "succeeded"]);
  assert.match(failed?.error?.message ?? "", /the schema is broken/);
  assert.equal(receiver.received.length, 2);
  assert.equal(ports.size, 1);
});

test("middleware goes around a request until its answer has come", async (t) => {
  const seen: string[] = [];
  const receiver = await Receiver.start(t, (_, response) => {
    seen.push("answered");
    response.end("fine");
  });
  const call = request("call", { method: "GET", send: () => ({ url: receiver.url }), ...LOCAL });
  const around = {
    attempt: async (_: unknown, next: () => Promise<unknown>): Promise<unknown> => {
      seen.push("begins");
      const ended = await next();
      seen.push("ended");
      return ended;
    },
  };
  const engine = await memory(t, [call], { middleware: [around] });
  const { id } = await engine.enqueue(call, null);
  await engine.runUntilIdle();
  assert.deepEqual(seen, ["begins", "answered", "ended"]);
  assert.equal((await engine.get(id))?.state, "succeeded");
});
