// Runs inside a network namespace of its own: public and private addresses on loopback, a name server on port 53, and listeners that must stay silent. Prints what
// came of each request as JSON.
import { createSocket } from "node:dgram";
import { createServer, type Server } from "node:http";
import { open } from "../../src/index.ts";
import { request } from "../../src/requests.ts";

const PUBLIC = "93.184.215.14";
const PRIVATE = ["10.0.0.1", "169.254.169.254"];

/** The addresses of a name, one list after the other; the last one again and again. */
const NAMES: Readonly<Record<string, readonly (readonly string[])[]>> = {
  "good.example": [[PUBLIC]],
  "private.example": [["10.0.0.1"]],
  "metadata.example": [["169.254.169.254"]],
  "mixed.example": [["10.0.0.1", PUBLIC]],
  // Public when it is first asked about, private ever after.
  "rebound.example": [[PUBLIC], ["10.0.0.1"]],
};

const asked = new Map<string, number>();
const dns = createSocket("udp4");
dns.on("message", (query, from) => {
  const labels: string[] = [];
  let at = 12;
  for (; query[at] !== 0; at += query[at]! + 1) labels.push(query.toString("latin1", at + 1, at + 1 + query[at]!));
  const end = at + 5;
  const name = labels.join(".");
  const lists = query.readUInt16BE(end - 4) === 1 ? (NAMES[name] ?? []) : [];
  const times = asked.get(name) ?? 0;
  if (lists.length > 0) asked.set(name, times + 1);
  const addresses = lists[Math.min(times, lists.length - 1)] ?? [];
  const head = Buffer.from(query.subarray(0, end));
  head.writeUInt16BE(NAMES[name] ? 0x8180 : 0x8183, 2);
  head.writeUInt16BE(addresses.length, 6);
  head.writeUInt32BE(0, 8);
  const records = addresses.map((one) =>
    Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, ...one.split(".").map(Number)]),
  );
  dns.send(Buffer.concat([head, ...records]), from.port, from.address);
});
await new Promise<void>((resolve) => dns.bind(53, "127.0.0.1", resolve));

const hits = new Map<string, number>();
const redirects = new Map<string, string>([
  ["/to-private", "http://10.0.0.1/x"],
  ["/to-metadata", "http://metadata.example/x"],
]);
const servers: Server[] = [];
for (const address of [PUBLIC, ...PRIVATE, "127.0.0.1"]) {
  const server = createServer((incoming, response) => {
    const location = redirects.get(incoming.url!);
    if (location) response.writeHead(302, { location }).end();
    else response.end(`from ${address}`);
  });
  // A connection is a hit: nothing may get that far.
  server.on("connection", () => hits.set(address, (hits.get(address) ?? 0) + 1));
  await new Promise<void>((resolve) => server.listen(80, address, resolve));
  servers.push(server);
}

const came: Record<string, string> = {};
const probe = request("probe", {
  method: "GET",
  protocols: ["http:", "https:"],
  redirects: { max: 3, sameOrigin: false },
  retry: { attempts: 1 },
  timeouts: { connect: "2s", total: "5s" },
  send: (url) => ({ url: url as string }),
});
probe.onResponse(({ input, body }) => void (came[input as string] = body));
probe.onError(({ input, is }) => void (came[input as string] = is));
const engine = await open("sqlite::memory:", { jobs: [probe], logger: false });
const urls = [
  ...Object.keys(NAMES).map((name) => `http://${name}/`),
  "http://nothing.example/",
  `http://${PUBLIC}/`,
  "http://10.0.0.1/",
  "http://[::ffff:10.0.0.1]/",
  "http://169.254.169.254/latest/meta-data/",
  "http://127.0.0.1/",
  "http://good.example/to-private",
  "http://good.example/to-metadata",
];
for (const url of urls) {
  await engine.enqueue(probe, url);
  await engine.runUntilIdle();
}
await engine.close();
// Another process, so to speak: the name is asked about again, and is private now.
const next = await open("sqlite::memory:", { jobs: [probe], logger: false });
await next.enqueue(probe, "http://rebound.example/later");
await next.runUntilIdle();
process.stdout.write(
  JSON.stringify({ came, hits: Object.fromEntries(hits), reboundAsked: asked.get("rebound.example") }),
);
await next.close();
process.exit(0);
