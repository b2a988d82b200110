// The metrics of `--requests`, in the order in which they are run and printed.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { type Figure, percentile, round } from "../figure.ts";
import type { Bench, Metric, Program } from "../harness.ts";
import type { StoreName } from "../stores/tested-store.ts";
import { hosts, order } from "./keys.ts";

/** What a store may cost on top of bare undici. */
const SHARES: Readonly<Record<StoreName, { readonly rate: number; readonly cpu: number }>> = {
  sqlite: { rate: 0.65, cpu: 1.5 },
  postgres: { rate: 0.55, cpu: 2 },
  redis: { rate: 0.55, cpu: 1.5 },
};

const rates: Metric = {
  names: ["requests", "requestCpu"],
  async run(bench) {
    const count = bench.pick(10_000, 1_000);
    // What a kind has unless it says otherwise.
    const inFlight = 256;
    const server = await bench.start("request-server", {});
    const target = await server.ask<string>("url");
    const ours = await bench.start("requests", { url: await bench.store.place(), target, inFlight, bare: false });
    const bare = await bench.start("requests", { url: "", target, inFlight, bare: true });
    return bench.during([ours, bare, server], async () => {
      const pairs: { ours: Ran; bare: Ran }[] = [];
      for (const n of bench.rounds("requests", bench.pick(9, 5), 3)) {
        await ours.ask("fill", { count });
        const of = { ours: await ours.ask<Ran>("run", { count }), bare: await bare.ask<Ran>("run", { count }) };
        // The first warms up.
        if (n > 1) pairs.push(of);
        await server.ask("reset", {});
      }
      const middle = (of: (pair: (typeof pairs)[0]) => number): number => percentile(pairs.map(of), 50);
      const rate = middle((pair) => count / pair.ours.seconds);
      const bareRate = middle((pair) => count / pair.bare.seconds);
      const rateShare = middle((pair) => pair.bare.seconds / pair.ours.seconds);
      const cpu = middle((pair) => pair.ours.cpuUs);
      const bareCpu = middle((pair) => pair.bare.cpuUs);
      const cpuShare = middle((pair) => pair.ours.cpuUs / pair.bare.cpuUs);
      const { rate: least, cpu: most } = SHARES[bench.store.name];
      const detail = {
        how: "the same small GETs, 256 in flight, no callbacks; the CPU of the process, without the server's",
        count,
        rounds: pairs.length,
      };
      return [
        {
          name: "requests",
          unit: "requests/s",
          ours: rate,
          base: { what: "bare undici", value: bareRate },
          targets: [{ text: `≥ ${least * 100} % of bare undici`, value: rateShare, atLeast: least }],
          detail,
        },
        {
          name: "requestCpu",
          unit: "µs of CPU",
          ours: cpu,
          base: { what: "bare undici", value: bareCpu },
          targets: [{ text: `≤ ${most} x bare undici`, value: cpuShare, atMost: most }],
          detail,
        },
      ];
    });
  },
};

interface Ran {
  readonly seconds: number;
  readonly cpuUs: number;
}

async function untilCount(bench: Bench, server: Program, what: string, count: number): Promise<void> {
  for (;;) {
    const arrived = await server.ask<number>("count");
    if (arrived >= count) return;
    bench.progress(`${what}: ${arrived} of ${count} in flight`);
    await pause(50);
  }
}

const memory: Metric = {
  names: ["requestMemoryKb", "requestLoopLagMs"],
  async run(bench) {
    const inFlight = bench.pick(10_000, 1_000);
    const server = await bench.start("request-server", {});
    const target = await server.ask<string>("url");
    const ours = await bench.start("requests", { url: await bench.store.place(), target, inFlight, bare: false }, [
      "--expose-gc",
    ]);
    return bench.during([ours, server], async () => {
      await server.ask("hold", { on: true });
      await ours.ask("fill", { count: inFlight });
      const before = await ours.ask<number>("rss");
      const lag = await opened(bench, ours, server, inFlight);
      const after = await ours.ask<number>("rss");
      const cpuBefore = await ours.ask<number>("cpu");
      const idleMs = bench.pick(5_000, 2_000);
      await pause(idleMs);
      const idle = ((await ours.ask<number>("cpu")) - cpuBefore) / 10 / idleMs;
      const each = (after - before) / 1_024 / inFlight;
      await server.ask("hold", { on: false });
      const withSecret = await lagWithSecret(bench, inFlight / 2);
      return [
        {
          name: "requestMemoryKb",
          unit: "KB",
          ours: each,
          targets: [
            { text: "≤ 25 KB of RSS each", value: each, atMost: 25 },
            { text: "≤ 5 % of a core while all wait", value: idle, atMost: 5 },
          ],
          detail: {
            how: "RSS of the process before and with all in flight, per request; HTTP",
            inFlight,
            idleCpuPercent: round(idle),
          },
        },
        {
          name: "requestLoopLagMs",
          unit: "ms",
          ours: lag.p99,
          targets: [
            { text: "≤ 50 ms (p99)", value: lag.p99, atMost: 50 },
            { text: "≤ 50 ms (p99) with a secret in each", value: withSecret.p99, atMost: 50 },
          ],
          detail: {
            how: "delay of the event loop while all are opened; with a secret half as many",
            inFlight,
            largest: round(lag.max),
            withSecret: round(withSecret.p99),
            largestWithSecret: round(withSecret.max),
          },
        },
      ];
    });
  },
};

interface Lag {
  readonly p99: number;
  readonly max: number;
}

/** The delay of the sender's event loop until the server has all of them. */
async function opened(bench: Bench, ours: Program, server: Program, count: number): Promise<Lag> {
  await ours.ask("go", {});
  await untilCount(bench, server, "requestMemoryKb", count);
  return ours.ask<Lag>("lag");
}

async function lagWithSecret(bench: Bench, inFlight: number): Promise<Lag> {
  const server = await bench.start("request-server", {});
  const target = await server.ask<string>("url");
  const url = await bench.store.place();
  const ours = await bench.start("requests", { url, target, inFlight, bare: false, withSecret: true });
  return bench.during([ours, server], async () => {
    await server.ask("hold", { on: true });
    await ours.ask("fill", { count: inFlight });
    const lag = await opened(bench, ours, server, inFlight);
    await server.ask("hold", { on: false });
    return lag;
  });
}

/** A process that sends, and the server that it sends to. */
interface Sender {
  readonly program: Program;
  readonly server: Program;
}

interface Resending {
  readonly name: string;
  readonly how: string;
  /** 99 % are there again after this many ms. */
  readonly allMs: number;
  readonly inFlight: number;
  readonly kills: number;
  readonly tls?: { readonly key: string; readonly cert: string };
}

async function resending(bench: Bench, given: Resending): Promise<Figure> {
  const { name, how, allMs, inFlight, kills, tls } = given;
  const url = await bench.store.place();
  // Each process has a server of its own: one whose thousands of connections break at once is busy with that for up to half a second, and would measure itself.
  const servers = [await bench.start("request-server", { tls }), await bench.start("request-server", { tls })];
  const start = async (server: Program): Promise<Sender> => {
    const target = await server.ask<string>("url");
    const data = { url, target, inFlight, bare: false, ...(tls && { ca: tls.cert }) };
    return { server, program: await bench.start("requests", data) };
  };
  for (const server of servers) await server.ask("hold", { on: true });
  let sending = await start(servers[0]!);
  await sending.program.ask("fill", { count: inFlight });
  await sending.program.ask("go", {});
  await untilCount(bench, sending.server, name, inFlight);
  // Only the one that is killed has them.
  let neighbour = await start(servers[1]!);
  await neighbour.program.ask("go", {});
  const first: number[] = [];
  const all: number[] = [];
  for (let kill = 1; kill <= kills; kill++) {
    await pause(1_000);
    const killedAt = Number(process.hrtime.bigint()) / 1e6;
    await sending.program.kill();
    await untilCount(bench, neighbour.server, `${name}, kill ${kill}`, inFlight);
    const arrivals = (await neighbour.server.ask<number[]>("arrivals")).map((at) => at - killedAt);
    first.push(Math.min(...arrivals));
    all.push(percentile(arrivals, 99));
    await sending.server.ask("reset", {});
    [sending, neighbour] = [neighbour, await start(sending.server)];
    await neighbour.program.ask("go", {});
  }
  await Promise.all([sending.program, neighbour.program, ...servers].map((one) => one.kill()));
  const last = Math.max(...all);
  return {
    name,
    unit: "ms",
    ours: last,
    targets: [
      { text: "the first again ≤ 500 ms after each kill", value: Math.max(...first), atMost: 500 },
      { text: `99 % again ≤ ${allMs} ms after each kill`, value: last, atMost: allMs },
    ],
    detail: {
      how: `from SIGKILL to the arrival at the server of the other process, ${how}`,
      inFlight,
      kills,
      first: round(Math.max(...first)),
      p99: round(last),
      eachKill: all.map(Math.round).join(", "),
    },
  };
}

const resent: Metric = {
  names: ["requestsResentMs"],
  run: async (bench) => [
    await resending(bench, {
      name: "requestsResentMs",
      how: "HTTP",
      allMs: 3_000,
      inFlight: bench.pick(5_000, 500),
      kills: bench.pick(5, 2),
    }),
  ],
};

const resentTls: Metric = {
  names: ["requestsResentTlsMs"],
  run: async (bench) => [
    await resending(bench, {
      name: "requestsResentTlsMs",
      how: "HTTPS over HTTP/1.1",
      allMs: 15_000,
      inFlight: bench.pick(5_000, 200),
      kills: bench.pick(2, 1),
      tls: certificate(bench.folder()),
    }),
  ],
};

/** A certificate of its own for 127.0.0.1, which is its own authority. */
function certificate(folder: string): { readonly key: string; readonly cert: string } {
  const args =
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem -days 1 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1";
  execFileSync("openssl", args.split(" "), { cwd: folder, stdio: "ignore" });
  const read = (file: string): string => readFileSync(join(folder, file), "utf8");
  return { key: read("key.pem"), cert: read("cert.pem") };
}

const everywhere = [rates, memory, resent, resentTls, order, hosts];

export const requestMetrics: Readonly<Record<StoreName, readonly Metric[]>> = {
  sqlite: everywhere,
  postgres: everywhere,
  redis: everywhere,
};
