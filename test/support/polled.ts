// What one process polls for all: a job that no wake-up announced starts in a worker that would not have polled for an hour.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import type { ClientOptions } from "../../src/client.ts";
import type { Child } from "./processes.ts";

interface Polling {
  readonly url: string;
  /** Starts a worker of this kind alone. */
  readonly start: (kind: string, poll: "1h" | "1s") => Child;
  readonly options?: ClientOptions;
}

/** Generous, for a busy machine. Without the poll it would be an hour. */
const SOON_MS = 20_000;
/** On Redis the write itself wakes workers, so the elected process rests for up to 20 s while nothing is written. */
const SOON_ON_REDIS_MS = 60_000;

/**
 * The worker of `slow` polls once an hour; those of `stepped` poll every second, and one of them is elected. `kills`: that one is killed first.
 * The worker of `slow` must not be elected: it would poll once an hour for all.
 */
export async function polledForAll(
  t: TestContext,
  { url, start, options = {} }: Polling,
  kills: boolean,
): Promise<void> {
  const idler = await (url.startsWith("sqlite") ? fleetOnFile(start, kills) : fleetOnServer(start, kills));
  const program = fileURLToPath(new URL("./unannounced.ts", import.meta.url));
  const { signal } = spawnSync(process.execPath, [program, url, "unannounced", JSON.stringify(options)], {
    stdio: ["ignore", "ignore", "inherit"],
  });
  const from = performance.now();
  const soonMs = url.startsWith("redis") ? SOON_ON_REDIS_MS : SOON_MS;
  assert.equal(signal, "SIGKILL", "killed between the commit and the wake-up");
  await Promise.race([
    idler.untilFact("started", { id: "unannounced" }),
    new Promise((_, reject) => setTimeout(() => reject(new Error("nothing woke the worker")), soonMs).unref()),
  ]);
  t.diagnostic(`it started ${Math.round(performance.now() - from)} ms after the kill`);
}

type Start = Polling["start"];

async function idOf(child: Child): Promise<string> {
  return (await child.untilFact("working"))["worker"] as string;
}

/** On SQLite the last one in the ring of ids is elected. */
async function fleetOnFile(start: Start, kills: boolean): Promise<Child> {
  const idler = start("slow", "1h");
  const idlersId = await idOf(idler);
  const others: { readonly child: Child; readonly id: string }[] = [];
  while (others.filter((other) => other.id > idlersId).length < 2) {
    assert.ok(others.length < 12, "pids wrapped around");
    const child = start("stepped", "1s");
    others.push({ child, id: await idOf(child) });
  }
  if (kills) await kill(others.toSorted((a, b) => (a.id < b.id ? 1 : -1))[0]!.child);
  return idler;
}

/**
 * On servers the first one that asks is elected. When that one dies, those that are there ask many times a second for its role, which is free at once;
 * the worker of `slow` starts only then, and a process takes longer to start.
 */
async function fleetOnServer(start: Start, kills: boolean): Promise<Child> {
  const elected = start("stepped", "1s");
  await idOf(elected);
  for (const child of [start("stepped", "1s"), start("stepped", "1s")]) await idOf(child);
  if (kills) await kill(elected);
  const idler = start("slow", "1h");
  await idOf(idler);
  return idler;
}

async function kill(child: Child): Promise<void> {
  child.kill();
  await child.exited;
}
