// What a request must not do, whatever its input says and whatever the other side sends: a test for each line of the table in docs/requests.md.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createSocket } from "node:dgram";
import { Resolver as Ares } from "node:dns/promises";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer as createHttps } from "node:https";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { gzipSync } from "node:zlib";
import { type RequestFailure, request, type RequestOptions, secret, type Sent } from "../../src/requests.ts";
import { Addresses } from "../../src/requests/addresses.ts";
import { Connections } from "../../src/requests/connections.ts";
import { Resolver } from "../../src/requests/resolver.ts";
import { Secrets } from "../../src/requests/secrets.ts";
import { Sender } from "../../src/requests/sender.ts";
import type { EngineOptions, Json } from "../../src/index.ts";
import { AT_ONCE, memory } from "../engine/engines.ts";
import { Receiver } from "./server.ts";

const ANY = { addresses: "any" } as const;

interface Outcome {
  readonly failure: RequestFailure | null;
  readonly body: string | null;
}

/** Sends one request and returns what came of it. */
async function outcome(
  t: TestContext,
  send: () => Sent,
  options: RequestOptions<Json> & { readonly method?: "GET" | "PUT" } = {},
  engineOptions: EngineOptions = {},
): Promise<Outcome> {
  let failure: RequestFailure | null = null;
  let body: string | null = null;
  const call = request("call", { method: "GET", retry: { attempts: 1, backoff: AT_ONCE }, send, ...options });
  call.onError((given) => void (failure = given));
  call.onResponse((given) => void (body = given.body));
  const engine = await memory(t, [call], engineOptions);
  await engine.enqueue(call, null);
  await engine.runUntilIdle();
  return { failure, body };
}

async function refusal(...given: Parameters<typeof outcome>): Promise<string> {
  const { failure } = await outcome(...given);
  assert.ok(failure, "it failed");
  return `${failure.is}: ${failure.message}`;
}

// ---- addresses

test("only public addresses pass, in every notation", () => {
  const rule = new Addresses("public");
  const refused = `127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 255.255.255.255 224.0.0.1 192.0.0.1 192.0.2.1
    198.18.0.1 198.51.100.1 203.0.113.1 ::1 :: fe80::1 fc00::1 fd00:ec2::254 ff02::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::7f00:1 2002:7f00:1::
    2001:db8::1 100::1 ::127.0.0.1 not-an-address`;
  for (const address of refused.split(/\s+/)) assert.equal(rule.allows(address, "host"), false, address);
  for (const address of ["93.184.215.14", "1.1.1.1", "2606:4700::1111"]) assert.equal(rule.allows(address, "h"), true);
  const listed = new Addresses(["10.0.0.0/8", "internal.example"]);
  assert.equal(listed.allows("10.1.1.1", "x"), true);
  assert.equal(listed.allows("11.1.1.1", "x"), false);
  assert.equal(listed.allows("11.1.1.1", "INTERNAL.example"), true);
});

for (const host of ["127.0.0.1", "[::1]", "0x7f.1", "2130706433", "localhost", "[::ffff:127.0.0.1]", "127.1"])
  test(`a URL with the private address ${host} reaches nothing`, async (t) => {
    const receiver = await Receiver.start(t, (_, response) => response.end());
    const { port } = new URL(receiver.url);
    const protocols = ["http:", "https:"] as const;
    const message = await refusal(t, () => ({ url: `http://${host}:${port}/` }), { protocols });
    assert.match(message, /^refused: .*not one that this request may reach/);
    assert.deepEqual([receiver.received.length, receiver.connections], [0, 0]);
  });

/** What a name server sends back: these addresses, if it was asked for those of IPv4. */
function dnsAnswer(query: Buffer, given: readonly string[]): Buffer {
  const end = query.indexOf(0, 12) + 5;
  const addresses = query.readUInt16BE(end - 4) === 1 ? given : [];
  const head = Buffer.from(query.subarray(0, end));
  head.writeUInt16BE(0x8180, 2);
  head.writeUInt16BE(addresses.length, 6);
  head.writeUInt16BE(0, 8);
  head.writeUInt16BE(0, 10);
  const records = addresses.map((one) =>
    Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, ...one.split(".").map(Number)]),
  );
  return Buffer.concat([head, ...records]);
}

test("at most 200 names are looked up at once, and all of them are found", async (t) => {
  // Room for the queries of all names, two each.
  const socket = createSocket({ type: "udp4", recvBufferSize: 200 << 10 });
  const asked = new Map<string, { readonly query: Buffer; readonly port: number }[]>();
  let isHolding = true;
  let askedWhileHeld = 0;
  /** A few at a time: more would not fit into the buffer of the client's socket. */
  const answer = (held: { readonly query: Buffer; readonly port: number }[]): void => {
    for (const { query, port } of held.splice(0, 20))
      socket.send(dnsAnswer(query, ["93.184.215.14"]), port, "127.0.0.1");
    if (held.length > 0) setImmediate(answer, held);
  };
  const letGo = (): void => {
    isHolding = false;
    askedWhileHeld = asked.size;
    answer([...asked.values()].flat());
  };
  socket.on("message", (query, { port }) => {
    if (!isHolding) return socket.send(dnsAnswer(query, ["93.184.215.14"]), port, "127.0.0.1");
    const name = query.subarray(12, query.indexOf(0, 12)).toString("latin1");
    asked.set(name, [...(asked.get(name) ?? []), { query, port }]);
    // What was sent before is read before the next turn but one of the event loop.
    if (asked.size === 200) setImmediate(() => setImmediate(letGo));
  });
  await new Promise<void>((resolve) => socket.bind(0, "127.0.0.1", resolve));
  t.after(() => socket.close());
  const resolver = new Resolver(() => 0, [`127.0.0.1:${socket.address().port}`]);
  const names = Array.from({ length: 500 }, (_, n) => `host${n}.example.com`);
  const found = await Promise.all(names.map((name) => resolver.resolve(name)));
  assert.ok(found.every(([one]) => one?.address === "93.184.215.14"));
  assert.equal(askedWhileHeld, 200);
});

test("a place that becomes free goes to the name that waits, whatever is looked up at that moment", async (t) => {
  const held = new Map<string, (addresses: string[]) => void>();
  let most = 0;
  t.mock.method(Ares.prototype, "resolve4", (name: string) => {
    const found = new Promise<string[]>((resolve) => held.set(name, resolve));
    most = Math.max(most, held.size);
    return found;
  });
  t.mock.method(Ares.prototype, "resolve6", () => Promise.resolve([]));
  const resolver = new Resolver(() => 0);
  const all: Promise<unknown>[] = [];
  const resolve = (): void => void all.push(resolver.resolve(`host${all.length}.example.com`));
  for (let n = 0; n < 201; n++) resolve();
  while (held.size < 200) await Promise.resolve();
  const [name, found] = [...held][0]!;
  held.delete(name);
  found(["93.184.215.14"]);
  // One in each of the next microtasks: one of them comes between the end of the first and what waits for its place.
  for (let n = 0; n < 20; n++) {
    await Promise.resolve();
    resolve();
  }
  for (let ended = false; !ended;) {
    for (const [one, answer] of held) {
      held.delete(one);
      answer(["93.184.215.14"]);
    }
    ended = await Promise.race([
      Promise.all(all).then(() => true),
      new Promise<boolean>((turn) => setImmediate(turn, false)),
    ]);
  }
  await Promise.all(all);
  assert.deepEqual([all.length, most], [221, 200]);
});

/** A name server that answers A queries with these addresses, one list after the other. */
async function nameServer(
  t: TestContext,
  answers: readonly (readonly string[])[],
): Promise<{ at: string; asked: () => number }> {
  const socket = createSocket("udp4");
  let asked = 0;
  socket.on("message", (query, from) => {
    const end = query.indexOf(0, 12) + 5;
    const isA = query.readUInt16BE(end - 4) === 1;
    const addresses = isA ? answers[Math.min(asked++, answers.length - 1)]! : [];
    socket.send(dnsAnswer(query, addresses), from.port, from.address);
  });
  await new Promise<void>((resolve) => socket.bind(0, "127.0.0.1", resolve));
  t.after(() => socket.close());
  return { at: `127.0.0.1:${socket.address().port}`, asked: () => asked };
}

test("a name is checked each time it is resolved, and of several addresses only the allowed ones are used", async (t) => {
  // 127.0.0.2 stands for a public address, 127.0.0.1 for a private one.
  const receiver = await Receiver.start(t, (_, response) => response.end("private"));
  const { port } = new URL(receiver.url);
  const dns = await nameServer(t, [["127.0.0.1"], ["127.0.0.2", "127.0.0.1"]]);
  let mono = 0;
  const secrets = new Secrets({}, () => mono);
  const connections = new Connections(new Resolver(() => mono, [dns.at]), secrets);
  t.after(() => connections.close());
  const dispatcher = await connections.of({
    addresses: ["127.0.0.2/32"],
    connectMs: 2_000,
    http2: false,
    fresh: false,
    proxy: null,
    ca: [],
    cert: null,
    key: null,
    localAddress: null,
  });
  const sender = new Sender(() => mono);
  const timeouts = { connectMs: 2_000, headersMs: 2_000, bodyMs: 2_000, totalMs: 5_000 };
  const send = () => {
    const url = new URL(`http://rebound.example:${port}/`);
    const rendered = { url, method: "GET", headers: {}, body: null, idempotencyKey: null };
    const options = { timeouts, maxResponse: 1_000, ignoreBody: false, blobs: null, fresh: false };
    return sender.send(dispatcher, rendered, options, mono + 5_000).ended;
  };
  const first = await send();
  assert.ok(first.is === "none" && first.fault === "refused", JSON.stringify(first));
  mono += 60_000;
  // 127.0.0.2 has no listener: the connection is refused there, and 127.0.0.1 is not tried.
  const second = await send();
  assert.ok(second.is === "none" && second.fault === "network" && !second.sent, JSON.stringify(second));
  assert.equal(dns.asked(), 2);
  assert.deepEqual([receiver.received.length, receiver.connections], [0, 0]);
});

// ---- what is sent

const BAD_URLS: Readonly<Record<string, RegExp>> = {
  "ftp://example.com/": /scheme ftp:/,
  "file:///etc/passwd": /scheme file:/,
  "http://example.com/": /scheme http:/,
  "https://user:pass@example.com/": /user or a password/,
  "https://example.com:22/": /port 22/,
  "https://example.com:6379/": /port 6379/,
  "no url": /can't be parsed/,
};
for (const [url, message] of Object.entries(BAD_URLS))
  test(`the URL ${url} is refused before anything is sent`, async (t) => {
    const said = await refusal(t, () => ({ url }));
    assert.match(said, /^refused: /);
    assert.match(said, message);
    assert.doesNotMatch(said, /pass@/);
  });

const BAD_HEADERS: Readonly<Record<string, Record<string, string>>> = {
  "a line break in a value": { "x-a": "1\r\nx-b: 2" },
  "a NUL": { "x-a": "1\0" },
  "a value that is not ASCII": { "x-a": "grün" },
  "a line break in a name": { "x-a\r\nx-b": "1" },
  host: { host: "example.com" },
  "transfer-encoding": { "Transfer-Encoding": "chunked" },
  "content-length": { "content-length": "3" },
  connection: { connection: "upgrade" },
  expect: { expect: "100-continue" },
  "proxy-authorization": { "proxy-authorization": "x" },
};
for (const [what, headers] of Object.entries(BAD_HEADERS))
  test(`a header with ${what} is refused`, async (t) => {
    const receiver = await Receiver.start(t, (_, response) => response.end());
    assert.match(await refusal(t, () => ({ url: receiver.url, headers }), ANY), /^refused: .*header/);
    assert.equal(receiver.received.length, 0);
  });

test("a body beyond the limit, several bodies, and the body of a GET are refused", async (t) => {
  const url = "https://example.com";
  assert.match(
    await refusal(t, () => ({ url, body: Buffer.alloc((16 << 20) + 1) }), { method: "PUT" }),
    /at most 16777216/,
  );
  assert.match(await refusal(t, () => ({ url, body: "a", json: 1 }), { method: "PUT" }), /several bodies/);
  assert.match(await refusal(t, () => ({ url, body: "a" })), /a GET has no body/);
});

test("a secret without a value fails the request, and no value is in any row, error or event", async (t) => {
  const seen: string[] = [];
  const receiver = await Receiver.start(t, ({ headers }, response) => {
    seen.push(String(headers["authorization"]));
    response.statusCode = 400;
    response.end();
  });
  const headers = { authorization: secret("KEY") };
  assert.match(await refusal(t, () => ({ url: receiver.url, headers }), ANY), /secret "KEY" has no value/);
  assert.match(
    await refusal(t, () => ({ url: receiver.url, headers }), ANY, {
      secrets: () => {
        throw new Error("hunter2");
      },
    }),
    /^refused: (?!.*hunter2)/,
  );
  const events: string[] = [];
  const call = request("call", {
    method: "GET",
    ...ANY,
    send: () => ({ url: receiver.url, headers, query: { token: secret("KEY") } }),
  });
  const engine = await memory(t, [call], {
    secrets: { KEY: "hunter2" },
    onEvent: (event) => events.push(JSON.stringify(event)),
  });
  const { id } = await engine.enqueue(call, null);
  await engine.runUntilIdle();
  assert.deepEqual(seen, ["hunter2"]);
  assert.doesNotMatch(JSON.stringify(await engine.get(id)) + events.join("\n"), /hunter2/);
});

// ---- what comes back

test("an answer larger than the limit is refused, whether its length says so or not", async (t) => {
  const big = Buffer.alloc(3_000, "x");
  for (const length of [true, false]) {
    const receiver = await Receiver.start(t, (_, response) => {
      if (length) response.setHeader("content-length", big.length);
      response.end(big);
    });
    assert.match(await refusal(t, () => ({ url: receiver.url }), { ...ANY, maxResponse: "2KB" }), /^too-large: /);
  }
});

test("a gzip bomb of 100 MB ends at the limit, and memory stays bounded", async (t) => {
  const bomb = gzipSync(Buffer.alloc(100 << 20));
  const receiver = await Receiver.start(t, (_, response) => {
    response.setHeader("content-encoding", "gzip");
    response.end(bomb);
  });
  const before = process.memoryUsage().rss;
  assert.match(
    await refusal(t, () => ({ url: receiver.url }), { ...ANY, maxResponse: "512KB" }),
    /^too-large: .*once it is decoded/,
  );
  assert.ok(process.memoryUsage().rss - before < 64 << 20);
});

test("an answer with two codings, or one that is not what it says, fails", async (t) => {
  for (const [coding, body] of [
    ["gzip, gzip", gzipSync(gzipSync("x"))],
    ["gzip", Buffer.from("no gzip")],
  ] as const) {
    const receiver = await Receiver.start(t, (_, response) => {
      response.setHeader("content-encoding", coding);
      response.end(body);
    });
    assert.match(await refusal(t, () => ({ url: receiver.url }), ANY), /content-encoding|can't be decoded/);
  }
});

test("a compressed answer is decoded", async (t) => {
  const receiver = await Receiver.start(t, (_, response) => {
    response.setHeader("content-encoding", "gzip");
    response.end(gzipSync("hello"));
  });
  assert.equal((await outcome(t, () => ({ url: receiver.url }), ANY)).body, "hello");
});

/** A server of raw bytes. */
async function rawServer(t: TestContext, serve: (socket: Socket) => void): Promise<string> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {});
    socket.once("data", () => serve(socket));
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

test("a body that drips is ended by the total timeout", async (t) => {
  const url = await rawServer(t, (socket) => {
    socket.write("HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n");
    const drip = setInterval(() => socket.write("x"), 20);
    socket.once("close", () => clearInterval(drip));
  });
  const timeouts = { body: "10s", total: "300ms" } as const;
  assert.match(await refusal(t, () => ({ url }), { ...ANY, timeouts }), /^timeout: .*total timeout/);
});

test("a server that never answers is ended by the timeout of the headers", async (t) => {
  const url = await rawServer(t, () => {});
  assert.match(await refusal(t, () => ({ url }), { ...ANY, timeouts: { headers: "100ms" } }), /^timeout: /);
});

test("a body that stops is ended by its own timeout, long before the total one", async (t) => {
  const url = await rawServer(t, (socket) => socket.write("HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\nx"));
  const timeouts = { body: "100ms", total: "30s" } as const;
  assert.match(await refusal(t, () => ({ url }), { ...ANY, timeouts }), /^timeout: .*Body Timeout/);
});

test("a server that accepts a connection and does not go on with TLS is ended by the timeout of the connection", async (t) => {
  const url = (await rawServer(t, () => {})).replace("http:", "https:");
  const timeouts = { connect: "100ms", total: "30s" } as const;
  assert.match(await refusal(t, () => ({ url }), { ...ANY, timeouts }), /^timeout: .*Connect Timeout.*timeout: 100ms/);
});

test("informational answers without an end, and headers of a megabyte, are errors", async (t) => {
  const endless = await rawServer(t, (socket) => {
    socket.write("HTTP/1.1 103 Early Hints\r\n\r\n".repeat(200));
  });
  assert.match(await refusal(t, () => ({ url: endless }), ANY), /informational/);
  const long = await rawServer(t, (socket) => {
    socket.write(`HTTP/1.1 200 OK\r\nx-long: ${"a".repeat(1 << 20)}\r\n\r\n`);
  });
  assert.match(await refusal(t, () => ({ url: long }), ANY), /^network: .*[Hh]eaders/);
});

const LIES: Readonly<Record<string, readonly [answer: string, expected: RegExp]>> = {
  "fewer bytes than it says": ["HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort", /^network: /],
  "two lengths": ["HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nabc", /^network: /],
  "a length and chunks": [
    "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    /^network: /,
  ],
  "a chunk without an end": ["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\nabc", /^network: /],
  "an extension of a chunk without an end": [
    `HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;${"x".repeat(1 << 20)}`,
    /^network: /,
  ],
  "no HTTP": ["220 mail.example ESMTP\r\n", /^network: /],
};
for (const [what, [answer, expected]] of Object.entries(LIES))
  test(`an answer with ${what} is an error, and not half an answer`, async (t) => {
    const url = await rawServer(t, (socket) => socket.end(answer));
    assert.match(await refusal(t, () => ({ url }), ANY), expected);
  });

test("an answer without a request, on a connection that waits, is not taken for that of the next one", async (t) => {
  const url = await rawServer(t, (socket) => {
    const answer = (text: string): string => `HTTP/1.1 200 OK\r\ncontent-length: ${text.length}\r\n\r\n${text}`;
    // Both at once: the second has no request.
    socket.write(answer("mine") + answer("forged"));
  });
  const bodies: string[] = [];
  const call = request("call", {
    method: "GET",
    ...ANY,
    retry: { attempts: 3, backoff: AT_ONCE },
    send: () => ({ url }),
  });
  call.onResponse(({ body }) => void bodies.push(body));
  const engine = await memory(t, [call]);
  for (const n of [1, 2, 3]) {
    await engine.enqueue(call, n);
    await engine.runUntilIdle();
  }
  assert.deepEqual(bodies, ["mine", "mine", "mine"]);
});

test("cookies are not kept, JSON with __proto__ is refused, and a proxy of the environment is not used", async (t) => {
  const seen: (string | undefined)[] = [];
  const receiver = await Receiver.start(t, ({ url, headers }, response) => {
    seen.push(headers.cookie);
    response.setHeader("set-cookie", ["a=1", "b=2"]);
    response.end(url === "/proto" ? '{"__proto__":{"admin":true}}' : '{"fine":true}');
  });
  const before = process.env["HTTP_PROXY"];
  t.after(() => (before === undefined ? delete process.env["HTTP_PROXY"] : (process.env["HTTP_PROXY"] = before)));
  process.env["HTTP_PROXY"] = "http://127.0.0.1:1";
  const shown: object[] = [];
  const call = request("call", { method: "GET", ...ANY, response: "json", send: () => ({ url: receiver.url }) });
  call.onResponse(({ headers }) => void shown.push(headers));
  const engine = await memory(t, [call]);
  for (const n of [1, 2]) {
    await engine.enqueue(call, n);
    await engine.runUntilIdle();
  }
  assert.deepEqual(seen, [undefined, undefined]);
  assert.deepEqual(
    shown.map((headers) => "set-cookie" in headers),
    [false, false],
  );
  let refused = "";
  const proto = request("proto", {
    method: "GET",
    ...ANY,
    response: "json",
    send: () => ({ url: `${receiver.url}/proto` }),
  });
  proto.onError(({ is }) => void (refused = is));
  const other = await memory(t, [proto]);
  await other.enqueue(proto, null);
  await other.runUntilIdle();
  assert.equal(refused, "schema");
});

// ---- redirects

test("a redirect is a failed answer unless the kind allows it", async (t) => {
  const receiver = await Receiver.start(t, (_, response) => response.writeHead(302, { location: "/next" }).end());
  const { failure } = await outcome(t, () => ({ url: receiver.url }), ANY);
  assert.deepEqual([failure?.is, failure?.status, receiver.received.length], ["status", 302, 1]);
});

test("a redirect across origins carries no header of the user's, no key and no body", async (t) => {
  const other = await Receiver.start(t, (_, response) => response.end("there"));
  const first = await Receiver.start(t, (_, response) => response.writeHead(307, { location: `${other.url}/x` }).end());
  const redirects = { max: 3, sameOrigin: false } as const;
  const headers = { authorization: secret("K"), "x-api-key": "k", accept: "text/plain" };
  const { body } = await outcome(
    t,
    () => ({ url: first.url, headers }),
    { ...ANY, redirects },
    { secrets: { K: "v" } },
  );
  assert.equal(body, "there");
  const [there] = other.received;
  assert.deepEqual(
    [there?.headers["authorization"], there?.headers["x-api-key"], there?.headers["accept"]],
    [undefined, undefined, "text/plain"],
  );
  const put = { ...ANY, redirects, method: "PUT" } as const;
  assert.match(await refusal(t, () => ({ url: first.url, body: "b" }), put), /with its body to another origin/);
  assert.match(await refusal(t, () => ({ url: first.url }), { ...ANY, redirects: { max: 3 } }), /another origin/);
  assert.equal(other.received.length, 1);
});

test("a redirect loop, one to another scheme and one to a private address are refused", async (t) => {
  const locations: string[] = [];
  const receiver = await Receiver.start(t, (_, response) =>
    response.writeHead(302, { location: locations[0] ?? "/again" }).end(),
  );
  const redirects = { max: 3, sameOrigin: false } as const;
  const { port } = new URL(receiver.url);
  const url = receiver.url;
  assert.match(await refusal(t, () => ({ url }), { ...ANY, redirects }), /more than 3 times/);
  assert.equal(receiver.received.length, 4);
  locations[0] = "file:///etc/passwd";
  assert.match(await refusal(t, () => ({ url }), { ...ANY, redirects }), /scheme file:/);
  locations[0] = "http://u:p@127.0.0.1/";
  assert.match(await refusal(t, () => ({ url }), { ...ANY, redirects }), /user or a password/);
  locations[0] = `http://127.0.0.9:${port}/`;
  const only = { addresses: ["127.0.0.1/32"], redirects } as const;
  assert.match(await refusal(t, () => ({ url }), only), /not one that this request may reach/);
});

// ---- TLS

/** An authority, and a certificate of it for 127.0.0.1 or for another name. */
function certificates(t: TestContext): { ca: string; of: (name: string) => { key: string; cert: string } } {
  const folder = mkdtempSync(join(tmpdir(), "outlive-tls-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const openssl = (...args: string[]): void => void execFileSync("openssl", args, { cwd: folder, stdio: "ignore" });
  const curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
  openssl("req", "-x509", ...curve, "-keyout", "ca.key", "-out", "ca.pem", "-days", "1", "-subj", "/CN=test authority");
  const read = (file: string): string => readFileSync(join(folder, file), "utf8");
  return {
    ca: read("ca.pem"),
    of: (name) => {
      openssl(
        "req",
        ...curve,
        "-keyout",
        `${name}.key`,
        "-out",
        `${name}.csr`,
        "-subj",
        `/CN=${name}`,
        "-addext",
        `subjectAltName=${name}`.replace("=1", "=IP:1").replace("=w", "=DNS:w"),
      );
      openssl(
        "x509",
        "-req",
        "-in",
        `${name}.csr`,
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-out",
        `${name}.pem`,
        "-days",
        "1",
        "-copy_extensions",
        "copy",
      );
      return { key: read(`${name}.key`), cert: read(`${name}.pem`) };
    },
  };
}

test("certificates are verified: an own authority must be named, and the name must be that of the URL", async (t) => {
  const { ca, of } = certificates(t);
  const good = of("127.0.0.1");
  const right = await Receiver.start(
    t,
    (_, response) => response.end("safe"),
    (listener) => createHttps(good, listener),
  );
  assert.equal((await outcome(t, () => ({ url: right.url }), { ...ANY, tls: { ca } })).body, "safe");
  assert.match(await refusal(t, () => ({ url: right.url }), ANY), /^network: .*certificate/i);
  const wrong = await Receiver.start(
    t,
    (_, response) => response.end(),
    (listener) => createHttps(of("wrong.example"), listener),
  );
  assert.match(
    await refusal(t, () => ({ url: wrong.url }), { ...ANY, tls: { ca } }),
    /^network: .*(altnames|ALTNAME)/i,
  );
  assert.equal(wrong.received.length, 0);
  // Over TLS, too, a literal is checked.
  assert.match(await refusal(t, () => ({ url: right.url }), { tls: { ca } }), /not one that this request may reach/);
});

test("TLS older than 1.2 is refused", async (t) => {
  const { ca, of } = certificates(t);
  const receiver = await Receiver.start(
    t,
    (_, response) => response.end("old"),
    (listener) =>
      createHttps(
        { ...of("127.0.0.1"), minVersion: "TLSv1", maxVersion: "TLSv1.1", ciphers: "DEFAULT:@SECLEVEL=0" },
        listener,
      ),
  );
  assert.match(
    await refusal(t, () => ({ url: receiver.url }), { ...ANY, tls: { ca } }),
    /^network: .*(protocol|version)/i,
  );
  assert.equal(receiver.received.length, 0);
});

test("a client certificate comes from secrets", async (t) => {
  const { ca, of } = certificates(t);
  const server = of("127.0.0.1");
  const client = of("www.client.example");
  const receiver = await Receiver.start(
    t,
    (_, response) => response.end("known"),
    (listener) => createHttps({ ...server, ca, requestCert: true, rejectUnauthorized: true }, listener),
  );
  const secrets = { CERT: client.cert, KEY: client.key };
  const tls = { ca, cert: secret("CERT"), key: secret("KEY") };
  assert.equal((await outcome(t, () => ({ url: receiver.url }), { ...ANY, tls }, { secrets })).body, "known");
  assert.match(await refusal(t, () => ({ url: receiver.url }), { ...ANY, tls: { ca } }), /^network: /);
});
