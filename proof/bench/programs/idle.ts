// A worker with nothing to do, and what it costs.
import { type Duration, open } from "../../../src/index.ts";
import { given, serve } from "../program.ts";
import { noop } from "./noop.ts";

const { url, interval, lease } = given<{ url: string; interval?: Duration; lease?: Duration }>();
noop.handle(() => {});
const heartbeat = interval === undefined || lease === undefined ? {} : { heartbeat: { interval, lease } };
const engine = await open(url, { jobs: [noop], logger: false, ...heartbeat });
const handle = await engine.start();

export interface Idle {
  readonly cpuMs: number;
  readonly wallMs: number;
  readonly beats: number;
}

async function beats(): Promise<number> {
  return (await engine.workers()).find(({ id }) => id === handle.id)?.beats ?? 0;
}

serve({
  measure: async ({ ms }: { ms: number }): Promise<Idle> => {
    const before = await beats();
    const from = performance.now();
    const cpu = process.cpuUsage();
    await new Promise((resolve) => setTimeout(resolve, ms));
    const { user, system } = process.cpuUsage(cpu);
    const wallMs = performance.now() - from;
    return { cpuMs: (user + system) / 1_000, wallMs, beats: (await beats()) - before };
  },
});
