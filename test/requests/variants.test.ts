// The ways in which a kind of request may differ: protocol, proxy, signature, idempotency key, when it is given up and what is given up with it, and turns between keys.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createPublicKey, generateKeyPairSync, verify } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer as createHttp } from "node:http";
import { createSecureServer } from "node:http2";
import { createServer as createHttps } from "node:https";
import { type AddressInfo, connect, createServer as createTcp, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { z } from "zod";
import { type Engine, open } from "../../src/index.ts";
import { request, type RequestFailure, type RequestOptions, secret, standardWebhooks } from "../../src/requests.ts";
import { answers } from "../../src/testing/index.ts";
import { AT_ONCE, memory, says } from "../engine/engines.ts";
import { freshName } from "../support/redis.ts";
import { Receiver } from "./server.ts";

const LOCAL = { addresses: "any", retry: { attempts: 3, backoff: AT_ONCE } } as const;

// ---- protocols

/** A certificate of its own for 127.0.0.1, which is its own authority. */
function certificate(t: TestContext): { readonly key: string; readonly cert: string } {
  const folder = mkdtempSync(join(tmpdir(), "outlive-h2-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const args =
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem -days 1 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1";
  execFileSync("openssl", args.split(" "), { cwd: folder, stdio: "ignore" });
  const read = (file: string): string => readFileSync(join(folder, file), "utf8");
  return { key: read("key.pem"), cert: read("cert.pem") };
}

test("with http2 many requests share a connection, and a stream that is reset is sent again automatically", async (t) => {
  const own = certificate(t);
  let sessions = 0;
  let resets = 0;
  const arrived: string[] = [];
  const server = createSecureServer({ ...own, allowHTTP1: true });
  server.on("session", (session) => {
    sessions++;
    t.after(() => session.destroy());
  });
  server.on("stream", (stream, headers) => {
    arrived.push(`${String(headers[":method"])} ${String(headers[":path"])}`);
    stream.on("error", () => {});
    if (headers[":path"] === "/3" && resets++ === 0) return stream.close(7);
    stream.respond({ ":status": 200 });
    stream.end("over h2");
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => server.close());
  const url = `https://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const call = request("call", {
    input: z.number(),
    method: "GET",
    http2: true,
    tls: { ca: own.cert },
    ...LOCAL,
    send: (n) => ({ url: `${url}/${n}` }),
  });
  const got: string[] = [];
  call.onResponse(({ body, input }) => void got.push(`${input} ${body}`));
  const engine = await memory(t, [call]);
  await engine.enqueueMany(
    call,
    Array.from({ length: 20 }, (_, n) => n),
  );
  await engine.runUntilIdle();
  assert.deepEqual(got.toSorted(), Array.from({ length: 20 }, (_, n) => `${n} over h2`).toSorted());
  assert.equal(arrived.length, 21);
  assert.ok(sessions < 20, `${sessions} connections for 20 requests`);
});

/** A proxy that connects where it is asked to, fetches http URLs itself, and remembers what it was asked for. */
async function connectProxy(t: TestContext, refuses = false): Promise<{ url: string; asked: string[] }> {
  const asked: string[] = [];
  const sockets = new Set<Socket>();
  const server = createHttp((incoming, response) => {
    asked.push(incoming.url!);
    response.end("fetched by the proxy");
  });
  server.on("connect", (incoming, socket: Socket) => {
    asked.push(incoming.url!);
    if (refuses) return void socket.end("HTTP/1.1 403 Forbidden\r\n\r\n");
    const { hostname, port } = new URL(`http://${incoming.url}`);
    const out = connect(Number(port), hostname, () => {
      socket.write("HTTP/1.1 200 Connected\r\n\r\n");
      out.pipe(socket).pipe(out);
    });
    for (const one of [out, socket]) {
      sockets.add(one);
      one.on("error", () => one.destroy());
    }
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
    server.closeAllConnections();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, asked };
}

test("https goes through a tunnel of the proxy, http is fetched by it, and what the proxy refuses was never sent", async (t) => {
  const own = certificate(t);
  const receiver = await Receiver.start(
    t,
    (_, response) => response.end("reached"),
    (listener) => createHttps(own, listener),
  );
  const { host } = new URL(receiver.url);
  const cases = [
    { url: receiver.url, refuses: false, came: "reached", asked: host },
    { url: receiver.url, refuses: true, came: "network after 3", asked: host },
    { url: "http://plain.example/x", refuses: false, came: "fetched by the proxy", asked: "http://plain.example/x" },
  ];
  for (const { url, refuses, came, asked } of cases) {
    const proxy = await connectProxy(t, refuses);
    const call = request("call", {
      method: "POST",
      ifUnknown: "fail",
      proxy: proxy.url,
      tls: { ca: own.cert },
      ...LOCAL,
      send: () => ({ url }),
    });
    const got: string[] = [];
    call.onResponse(({ body }) => void got.push(body));
    call.onError(({ is, attempts }) => void got.push(`${is} after ${attempts}`));
    const engine = await memory(t, [call]);
    await engine.enqueue(call, null);
    await engine.runUntilIdle();
    assert.deepEqual(got, [came]);
    assert.deepEqual(new Set(proxy.asked), new Set([asked]));
  }
  assert.equal(receiver.received.length, 1);
});

test("a proxy that does not say that it filters is refused for public addresses", () => {
  const send = () => ({ url: "https://example.com" });
  assert.throws(
    () => request("call", { method: "GET", proxy: "http://proxy:3128", send }),
    says("OPTION_INVALID", "proxy of call", "filters: true"),
  );
  request("call", { method: "GET", proxy: { url: "http://proxy:3128", filters: true }, send });
});

test("the timeout of the connection also ends a proxy that accepts connections and says nothing", async (t) => {
  const sockets = new Set<Socket>();
  const silent = createTcp((socket) => void sockets.add(socket.on("error", () => {})));
  await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    silent.close();
  });
  const call = request("call", {
    method: "POST",
    ifUnknown: "fail",
    proxy: `http://127.0.0.1:${(silent.address() as AddressInfo).port}`,
    ...LOCAL,
    retry: { attempts: 1 },
    timeouts: { connect: "100ms", total: "1h" },
    send: () => ({ url: "https://api.example/" }),
  });
  const got: string[] = [];
  call.onError(({ is, message }) => void got.push(`${is}: ${message}`));
  const engine = await memory(t, [call]);
  await engine.enqueue(call, null);
  await engine.runUntilIdle();
  assert.match(got.join(), /^timeout: (?!.*total timeout)/);
});

test("a proxy makes the connections, so a local address next to it is refused", () => {
  const proxy = { url: "http://proxy:3128", filters: true } as const;
  const send = () => ({ url: "https://example.com" });
  assert.throws(
    () => request("call", { method: "GET", proxy, localAddress: "127.0.0.1", send }),
    says("OPTION_INVALID", "localAddress of call", "proxy"),
  );
});

// ---- signatures and idempotency

test("an Ed25519 key signs as v1a, and its public key verifies it", async (t) => {
  const receiver = await Receiver.start(t, (_, response) => response.end());
  const { privateKey, publicKey } = generateKeyPairSync("ed25519");
  const seed = privateKey.export({ format: "der", type: "pkcs8" }).subarray(-32);
  const deliver = request("deliver", {
    method: "POST",
    ifUnknown: "resend",
    ...LOCAL,
    send: () => ({ url: receiver.url, json: { a: 1 }, sign: standardWebhooks(secret("KEY")) }),
  });
  const engine = await memory(t, [deliver], { secrets: { KEY: `whsk_${seed.toString("base64")}` } });
  await engine.enqueue(deliver, null);
  await engine.runUntilIdle();
  const [{ headers, body }] = receiver.received as [(typeof receiver.received)[0]];
  const [version, signature] = String(headers["webhook-signature"]).split(",");
  const content = `${String(headers["webhook-id"])}.${String(headers["webhook-timestamp"])}.${body}`;
  assert.equal(version, "v1a");
  const key = createPublicKey(publicKey.export({ format: "pem", type: "spki" }));
  assert.ok(verify(null, Buffer.from(content), key, Buffer.from(signature!, "base64")));
  assert.ok(!verify(null, Buffer.from(`${content}!`), key, Buffer.from(signature!, "base64")));
});

/** The headers of the one request that such a kind sends. */
async function headersOf(t: TestContext, options: Partial<RequestOptions>, method: "POST" | "PUT" = "POST") {
  const { network, sent } = answers({ "* https://api.example/": "fine" });
  const call = request("call", {
    method,
    ifUnknown: "resend",
    send: () => ({ url: "https://api.example/" }),
    ...options,
  } as never) as ReturnType<typeof request>;
  const engine = await memory(t, [call], { network });
  const { id } = await engine.enqueue(call as never, null as never);
  await engine.runUntilIdle();
  return { id, headers: sent[0]!.headers };
}

test("the idempotency key is bare, quoted, under another name, or off", async (t) => {
  const bare = await headersOf(t, {});
  assert.equal(bare.headers["idempotency-key"], `${bare.id}:request`);
  const quoted = await headersOf(t, { idempotency: "quoted" });
  assert.equal(quoted.headers["idempotency-key"], `"${quoted.id}:request"`);
  const named = await headersOf(t, { idempotency: { header: "X-Request-Token" } });
  assert.equal(named.headers["x-request-token"], `${named.id}:request`);
  assert.equal(named.headers["idempotency-key"], undefined);
  assert.equal((await headersOf(t, { idempotency: "off" })).headers["idempotency-key"], undefined);
  assert.equal((await headersOf(t, {}, "PUT")).headers["idempotency-key"], undefined);
});

// ---- giving up

/** What became of one request whose server answers 500 each time. */
async function failing(
  t: TestContext,
  options: Partial<RequestOptions<never>>,
): Promise<{ engine: Engine; failure: RequestFailure; paused: string | undefined }> {
  const { network } = answers({ "PUT https://hook.example/": 500 });
  const hook = request("hook", {
    method: "PUT",
    retry: { attempts: 50, backoff: AT_ONCE },
    send: () => ({ url: "https://hook.example/" }),
    ...options,
  } as never) as ReturnType<typeof request>;
  let failure: RequestFailure | undefined;
  hook.onError((given) => void (failure = given as never));
  const engine = await memory(t, [hook], { network });
  await engine.enqueue(hook as never, null as never);
  const worker = await engine.start();
  const state = async () => (await engine.limits.get("hook", "hook.example")).paused?.reason;
  if (options.disable) while ((await state()) === undefined) await new Promise((resolve) => setImmediate(resolve));
  else while (failure === undefined) await new Promise((resolve) => setImmediate(resolve));
  const paused = options.disable && (await state());
  await worker.stop();
  return { engine, failure: failure!, paused };
}

test("an endpoint is disabled after this many failures of one request, or after it has failed for this long", async (t) => {
  assert.match((await failing(t, { disable: { failures: 4 } })).paused!, /^disabled: 4 failures in a row of request /);
  assert.match((await failing(t, { disable: { after: "20ms" } })).paused!, /^disabled: request .* has failed for /);
});

test("an endpoint is disabled on Redis, too, and goes on when it is resumed", async (t) => {
  const { url, name } = await freshName(t);
  const { network, sent } = answers({ "PUT https://hook.example/": [410, "back"] });
  const hook = request("hook", { method: "PUT", disable: {}, send: () => ({ url: "https://hook.example/" }) });
  const engine = await open(`${url}?store=${name}`, { jobs: [hook], logger: false, network });
  t.after(() => engine.close({ grace: "0ms" }));
  const first = await engine.enqueue(hook, 1);
  const worker = await engine.start();
  await assert.rejects(engine.result(first.id));
  assert.match((await engine.limits.get("hook", "hook.example")).paused!.reason, /disabled: .*410/);
  const second = await engine.enqueue(hook, 2);
  assert.equal((await engine.get(second.id))?.state, "queued");
  assert.equal(sent.length, 1);
  await engine.limits.resume("hook", "hook.example");
  assert.equal(((await engine.result(second.id)) as { status: number }).status, 200);
  await worker.stop();
});

test("a request is given up so long after its first failure, however many attempts it has left", async (t) => {
  const { failure } = await failing(t, { retry: { attempts: 1_000, backoff: AT_ONCE, giveUpAfter: "30ms" } });
  assert.equal(failure.is, "status");
  assert.ok(failure.attempts > 1 && failure.attempts < 1_000, `${failure.attempts} attempts`);
});

// ---- turns

test("with fair a key with few requests does not wait behind one with many", async (t) => {
  const order: string[] = [];
  const { network } = answers({
    "GET https://a.example/": () => (order.push("a"), "fine"),
    "GET https://b.example/": () => (order.push("b"), "fine"),
  });
  const probe = request("probe", {
    input: z.string(),
    method: "GET",
    fair: true,
    send: (host) => ({ url: `https://${host}/` }),
  });
  const engine = await memory(t, [probe], { network });
  await engine.enqueueMany(probe, [...Array<string>(30).fill("a.example"), "b.example", "b.example"]);
  await engine.runUntilIdle({ concurrency: { probe: 2 } });
  assert.equal(order.length, 32);
  const last = order.lastIndexOf("b");
  assert.ok(last < 12, `the last of b came as number ${last + 1}`);
});
