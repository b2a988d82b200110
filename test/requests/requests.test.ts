// Requests end to end in one process: what is sent, what comes back, and what follows.
import assert from "node:assert/strict";
import { createServer, type AddressInfo, type Socket } from "node:net";
import { test } from "node:test";
import { z } from "zod";
import type { RequestFailure, ResponseOf, UnknownOutcome } from "../../src/requests.ts";
import { request, secret, standardWebhooks } from "../../src/requests.ts";
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

test('a connection that breaks after sending: "resend" sends again, "fail" does not, "ask" asks', async (t) => {
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
    // @ts-expect-error ifUnknown must be said for POST
    () => request("pay", { method: "POST", send: () => ({ url: "https://example.com" }) }),
    says("OPTION_INVALID", "ifUnknown of pay", "resend"),
  );
});

test('"ask" without a handler is refused when a worker starts', async (t) => {
  const pay = request("pay", { method: "POST", ifUnknown: "ask", send: () => ({ url: "https://example.com" }) });
  const engine = await memory(t, [pay]);
  await assert.rejects(engine.start(), says("OPTION_INVALID", "pay", "onUnknown"));
});

void standardWebhooks;
