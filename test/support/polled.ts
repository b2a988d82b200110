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
const SOON_MS = 60_000;

/** The worker of `slow` never polls; those of `stepped` do, and one of them is elected. `kills`: that one is killed first. */
export async function polledForAll(
  t: TestContext,
  { url, start, options = {} }: Polling,
  kills: boolean,
): Promise<void> {
  const id = async (child: Child): Promise<string> => (await child.untilFact("working"))["worker"] as string;
  // On SQLite the last one in the ring of ids is elected, on servers the first one that asked.
  const early = start("stepped", "1s");
  const earlyId = await id(early);
  const idler = start("slow", "1h");
  const others = [{ child: early, id: earlyId }];
  const idlersId = await id(idler);
  while (others.length < 3 || others.filter((other) => other.id > idlersId).length < 2) {
    assert.ok(others.length < 12, "pids wrapped around");
    const child = start("stepped", "1s");
    others.push({ child, id: await id(child) });
  }
  const elected = url.startsWith("sqlite") ? others.toSorted((a, b) => (a.id < b.id ? 1 : -1))[0]! : others[0]!;
  if (kills) {
    elected.child.kill();
    await elected.child.exited;
  }
  const program = fileURLToPath(new URL("./unannounced.ts", import.meta.url));
  const { signal } = spawnSync(process.execPath, [program, url, "unannounced", JSON.stringify(options)], {
    stdio: ["ignore", "ignore", "inherit"],
  });
  const from = performance.now();
  assert.equal(signal, "SIGKILL", "killed between the commit and the wake-up");
  await Promise.race([
    idler.untilFact("started", { id: "unannounced" }),
    new Promise((_, reject) => setTimeout(() => reject(new Error("nothing woke the worker")), SOON_MS).unref()),
  ]);
  t.diagnostic(`it started ${Math.round(performance.now() - from)} ms after the kill`);
}
