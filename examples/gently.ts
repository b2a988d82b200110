// Many requests to many hosts, gently: a rate and a number in flight for each, whatever is queued; with LARGE=1 100,000. Outside of this repository write:
//   import { open } from "outlive";
//   import { request } from "outlive/requests";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import * as z from "zod";
import { open } from "../src/index.ts";
import { request } from "../src/requests.ts";

const { hostCount, each, withinSeconds } = process.env["LARGE"]
  ? { hostCount: 1_000, each: 100, withinSeconds: 600 }
  : { hostCount: 30, each: 10, withinSeconds: 30 };

// Stands for many hosts.
const starts = new Map<string, number[]>();
const hosts = createServer((incoming, response) => {
  const host = incoming.url!.split("/")[1]!;
  starts.set(host, [...(starts.get(host) ?? []), performance.now()]);
  response.end("page");
});
await new Promise<void>((resolve) => hosts.listen(0, "127.0.0.1", resolve));
const origin = `http://127.0.0.1:${(hosts.address() as AddressInfo).port}`;

const probe = request("probe", {
  input: z.object({ host: z.string(), page: z.number() }),
  method: "GET",
  send: ({ host, page }) => ({ url: `${origin}/${host}/${page}`, headers: { "user-agent": "acme-probe" } }),
  key: ({ host }) => host, // the default is the host of the URL
  limit: { inFlight: 2, rate: "20/s" },
  maxResponse: "64KB",
  retry: { attempts: 5 },
  addresses: "any", // the hosts of this example are on this machine
});

let pages = 0;
probe.onResponse(() => void pages++);

await using engine = await open("sqlite::memory:", { jobs: [probe], logger: false });
const inputs = Array.from({ length: hostCount * each }, (_, n) => ({
  host: `host-${n % hostCount}`,
  page: Math.floor(n / hostCount),
}));
await engine.enqueueMany(probe, inputs);
const began = performance.now();
await engine.runUntilIdle({ concurrency: { probe: 200, "probe.response": 50 } });
const seconds = (performance.now() - began) / 1_000;
const fastest = Math.min(...[...starts.values()].map((at) => at.at(-1)! - at[0]!));
console.log(`${pages} pages of ${starts.size} hosts`);
// Ten of a host at 20 a second start within 450 ms; at the host, the first may arrive later than the others.
const isGentle = fastest > (each - 1) * 22;
console.log(isGentle ? `each host got its ${each} one by one` : `one host got ${each} within ${fastest} ms`);
console.log(seconds < withinSeconds ? "hosts did not wait for each other" : `it took ${seconds} s`);
hosts.close();
hosts.closeAllConnections();
