// `npm run torture -- --migrate --rows N`: a large store of 0.1.0 is migrated while other sessions work with it. No transaction of theirs
// may wait longer than a second for the migration.
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";
import { migrationsOf } from "../../../src/stores/registry.ts";
import { PostgresServer } from "../../servers/postgres-server.ts";
import { wholeNumber } from "../arguments.ts";
import { fillLargeStore } from "./large-store.ts";
import { probe, PROBES, type Probing, type Wait } from "./probes.ts";

const MAX_WAIT_MS = 1_000;

/** What other sessions wait with no migration at work: the machine's own pace. */
const QUIET_MS = 2_000;

interface StepTimes {
  readonly step: number | "before";
  readonly name: string;
  readonly tookMs: number;
  readonly longest: Wait | null;
  /** In ms, by what was waited with. */
  readonly longestOf: Readonly<Record<string, number>>;
}

export async function migrateLarge(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      migrate: { type: "boolean" },
      rows: { type: "string", default: "100000" },
      json: { type: "boolean", default: false },
    },
  });
  const rows = wholeNumber(values.rows, "rows");
  const server = await PostgresServer.create({
    fsync: false,
    settings: { shared_buffers: "1GB", max_wal_size: "8GB" },
  });
  process.once("exit", () => server.destroyNow());
  try {
    const began = performance.now();
    await fillLargeStore(server, rows);
    const filledMs = Math.round(performance.now() - began);
    const probing = await probe(server.url());
    let steps: StepTimes[];
    try {
      steps = await migrateStepByStep(server.url(), probing);
    } finally {
      await probing.stop();
    }
    const slow = steps.filter(({ longest }) => longest !== null && longest.ms > MAX_WAIT_MS);
    const isSound = slow.length === 0 && probing.refused.length === 0;
    for (const words of new Set(probing.refused)) process.stderr.write(`refused: ${words}\n`);
    if (values.json)
      process.stdout.write(
        `${JSON.stringify({ rows, filledMs, maxWaitMs: MAX_WAIT_MS, steps, refused: probing.refused.length })}\n`,
      );
    else {
      process.stdout.write(`${rows} jobs, filled in ${Math.round(filledMs / 1_000)} s\n`);
      for (const step of steps) process.stdout.write(`${line(step)}\n`);
      process.stdout.write(
        isSound
          ? `No transaction waited longer than ${MAX_WAIT_MS} ms.\n`
          : "A transaction waited too long or was refused.\n",
      );
    }
    return isSound;
  } finally {
    await server.destroy();
  }
}

async function migrateStepByStep(url: string, probing: Probing): Promise<StepTimes[]> {
  const migrations = await migrationsOf(url);
  const missing = (await migrations.list()).filter(({ applied }) => !applied);
  const times: StepTimes[] = [await during("before", "no migration", probing, () => pause(QUIET_MS))];
  for (const { number, name } of missing) times.push(await during(number, name, probing, () => migrations.up(number)));
  return times;
}

/** Of all transactions that were open while it ran. */
async function during(
  step: StepTimes["step"],
  name: string,
  probing: Probing,
  work: () => Promise<unknown>,
): Promise<StepTimes> {
  const began = performance.now();
  await work();
  const ended = performance.now();
  // Those that still wait have begun before it ended: each of them ends with another one begun.
  const first = probing.waits.length;
  while (new Set(probing.waits.slice(first).map(({ probe: one }) => one)).size < PROBES.length) await pause(5);
  const open = probing.waits.filter(({ at, ms }) => at < ended && at + ms > began);
  const longest = open.toSorted((a, b) => b.ms - a.ms)[0] ?? null;
  const longestOf = Object.fromEntries(
    PROBES.map((one) => [
      one.name,
      Math.round(Math.max(0, ...open.filter((wait) => wait.probe === one.name).map(({ ms }) => ms))),
    ]),
  );
  return { step, name, tookMs: Math.round(ended - began), longest, longestOf };
}

function line({ step, name, tookMs, longest }: StepTimes): string {
  const waited = longest ? `longest wait ${Math.round(longest.ms)} ms (${longest.probe})` : "no transaction was open";
  return `${String(step).padStart(6)}  ${name.padEnd(28)} took ${String(tookMs).padStart(6)} ms   ${waited}`;
}
