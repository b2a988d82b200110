// Sends GET requests: as requests of ours, or, with `bare`, by undici alone with as many in flight. Those of `ordered` go one after the other per key, those of
// `hosts` at a rate per host.
import { monitorEventLoopDelay } from "node:perf_hooks";
import { Agent, type Dispatcher } from "undici";
import { z } from "zod";
import { open } from "../../../src/index.ts";
import { request, secret } from "../../../src/requests.ts";
import { given, monoMs, serve, tell } from "../program.ts";

const {
  url,
  target,
  inFlight,
  bare,
  ca,
  withSecret = false,
} = given<{
  url: string;
  target: string;
  inFlight: number;
  bare: boolean;
  /** The authority of the server's certificate; omitted: it has none. */
  ca?: string;
  /** Each request has a secret, so nothing of it is rendered at once. */
  withSecret?: boolean;
}>();
const PLAIN = {
  method: "GET",
  addresses: "any",
  response: "ignore",
  timeouts: { headers: "10m", total: "10m" },
} as const;
const headersOf = withSecret ? { headers: { authorization: secret("KEY") } } : {};
const get = request("get", {
  ...PLAIN,
  ...(ca !== undefined && { tls: { ca } }),
  send: () => ({ url: target, ...headersOf }),
});

const NUMBERED = z.object({ key: z.number(), n: z.number() });
const ordered = request("ordered", {
  ...PLAIN,
  input: NUMBERED,
  key: ({ key }) => String(key),
  order: "strict",
  send: ({ key, n }) => ({ url: `${target}/${key}/${n}` }),
});
const hosts = request("hosts", {
  ...PLAIN,
  input: NUMBERED,
  limit: { rate: "2/s" },
  send: ({ key, n }) => ({ url: target.replace("127.0.0.1", `127.0.${1 + (key >> 8)}.${key & 255}`) + `/${key}/${n}` }),
});
const KEYED = { ordered, hosts };
/** Those of ours, in number and length: what differs is the engine, not what goes over the wire. */
const headers = (n: number) => ({
  "user-agent": "bare undici",
  "accept-encoding": "gzip, br, zstd",
  "x-request-id": `0000000000000000000000000-${n}`,
});
const kinds = [get, ordered, hosts];
const engine = bare ? null : await open(url, { jobs: kinds, logger: false, secrets: { KEY: "k" } });
if (engine) for (const kind of kinds) await engine.pause(kind);
// Together they may not need more descriptors than a process has.
const keyed = Math.min(inFlight, 4_000);
const worker = await engine?.start({ concurrency: { get: inFlight, ordered: keyed, hosts: keyed } });
const agent = new Agent();
const lag = monitorEventLoopDelay({ resolution: 10 });
let before = process.cpuUsage();
let beganAt = 0;

function begin(): void {
  before = process.cpuUsage();
  beganAt = monoMs();
}

function ended(count: number): { seconds: number; cpuUs: number } {
  const { user, system } = process.cpuUsage(before);
  return { seconds: (monoMs() - beganAt) / 1_000, cpuUs: (user + system) / count };
}

/** As many in flight as ours, until `count` have ended. */
function bareSend(count: number): Promise<void> {
  const { origin, pathname: path } = new URL(target);
  return new Promise((resolve, reject) => {
    let started = 0;
    let done = 0;
    const next = (): void => {
      if (started++ < count)
        agent.dispatch(
          { origin, path, method: "GET", headers: headers(started), headersTimeout: 600_000, bodyTimeout: 30_000 },
          handler,
        );
    };
    const handler: Dispatcher.DispatchHandler = {
      onRequestStart: () => {},
      onResponseStart: () => {},
      onResponseData: () => {},
      onResponseEnd: () => {
        next();
        if (++done === count) resolve();
      },
      onResponseError: (_, error) => reject(error),
    };
    for (let i = 0; i < inFlight; i++) next();
  });
}

/** Counting rows is the reader's work, not that of the requests: the store is asked when nothing is held. */
async function untilSent(count: number): Promise<void> {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    if (worker!.held > 0) continue;
    const [counts] = (await engine!.counts()).filter(({ kind }) => kind === "get");
    if ((counts?.succeeded ?? 0) >= count) return;
  }
}

let sent = 0;
serve({
  fill: async ({ count }: { count: number }) => {
    sent += count;
    await engine!.enqueueMany(
      get,
      Array.from({ length: count }, (_, n) => n),
    );
  },
  /** `each` requests of each of `keys` keys. */
  fillKeys: async ({ kind, keys, each }: { kind: keyof typeof KEYED; keys: number; each: number }) => {
    for (let n = 0; n < each; n++)
      await engine!.enqueueMany(
        KEYED[kind],
        Array.from({ length: keys }, (_, key) => ({ key, n })),
      );
  },
  left: async ({ kind }: { kind: string }) => {
    const [counts] = (await engine!.counts()).filter((one) => one.kind === kind);
    return counts === undefined ? 0 : counts.ready + counts.held + counts.running + counts.delayed;
  },
  run: async ({ count }: { count: number }) => {
    begin();
    if (bare) await bareSend(count);
    else {
      await engine!.resume(get);
      await untilSent(sent);
      await engine!.pause(get);
    }
    return ended(count);
  },
  go: async () => {
    lag.enable();
    lag.reset();
    for (const kind of kinds) await engine!.resume(kind);
  },
  lag: () => {
    const found = { p99: lag.percentile(99) / 1e6, max: lag.max / 1e6 };
    lag.disable();
    return found;
  },
  rss: () => {
    globalThis.gc?.();
    return process.memoryUsage.rss();
  },
  cpu: () => {
    const { user, system } = process.cpuUsage();
    return user + system;
  },
  pid: () => process.pid,
});
tell("started", null);
