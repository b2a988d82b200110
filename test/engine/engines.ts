// What the engine's tests share: engines that close after their test, a second connection to a file, scripts in a process of
// their own, and the check that an error says what a user needs.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import type { TestContext } from "node:test";
import { checksumOf } from "../../src/stores/sqlite/checksums.ts";
import {
  type Declared,
  type Engine,
  type EngineOptions,
  type ErrorCode,
  Interruption,
  open,
  OutliveError,
} from "../../src/index.ts";

/** No waiting between attempts, so that `runUntilIdle()` runs them all. */
export const AT_ONCE = { base: "0ms", jitter: 0 } as const;

/** Looks often, but loses nothing on a machine that is so busy that a process stands still for a second. */
export const PATIENT = { interval: "200ms", lease: "60s", probe: "50ms", sweep: "1s" } as const;

/** An engine on a database that only this test has; closed after it, whatever runs. */
export async function memory(t: TestContext, jobs: readonly Declared[], options: EngineOptions = {}): Promise<Engine> {
  const engine = await open("sqlite::memory:", { jobs, logger: false, ...options });
  t.after(() => engine.close({ grace: "0ms" }));
  return engine;
}

/** A second connection, as another program would have one. The same SQLite library, so it drops no lock of the engine's. */
export function raw(t: TestContext, path: string): DatabaseSync {
  const db = new DatabaseSync(path, { timeout: 10_000 });
  t.after(() => {
    if (db.isOpen) db.close();
  });
  return db;
}

/** Replaces a stored input and its checksum, as a program does that writes to our tables itself. */
export function replaceInput(db: DatabaseSync, id: string, text: string): void {
  db.prepare("UPDATE outlive_jobs SET input = ?, input_sum = ? WHERE id = ?").run(text, checksumOf(text, id), id);
}

/** Whether an error has this code, tells what it is about and what to do next. For `assert.rejects` and `assert.throws`. */
export function says(code: ErrorCode, ...what: (RegExp | string)[]): (thrown: unknown) => true {
  return (thrown) => {
    assert.ok(thrown instanceof OutliveError, `not one of ours: ${String(thrown)}`);
    assert.equal(thrown.code, code, thrown.message);
    for (const part of what)
      if (typeof part === "string") assert.ok(thrown.message.includes(part), `${part} is not in: ${thrown.message}`);
      else assert.match(thrown.message, part);
    assert.ok(thrown.hint.length > 0 && thrown.message.endsWith(thrown.hint), "it says what to do next");
    return true;
  };
}

/** Resolves with the reason when the signal aborts. */
export function untilAborted(signal: AbortSignal): Promise<Interruption> {
  return new Promise((resolve) => {
    const told = (): void => {
      assert.ok(signal.reason instanceof Interruption);
      resolve(signal.reason);
    };
    if (signal.aborted) told();
    else signal.addEventListener("abort", told, { once: true });
  });
}

/** Never returns, whatever its signal says. */
export const forever = (): Promise<never> => new Promise(() => {});

export interface Ended {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface ScriptOptions {
  readonly args?: readonly string[];
  /** Runs it as this user and group. */
  readonly uid?: number;
}

/** Runs a module's text in a separate process. It may import from `SRC`, the address of the sources; its arguments are `ARGS`. */
export function script(text: string, options: ScriptOptions = {}): Promise<Ended> {
  const { args = [], uid } = options;
  const path = join(tmpdir(), `outlive-script-${randomUUID()}.mjs`);
  const src = JSON.stringify(new URL("../../src/", import.meta.url).href);
  writeFileSync(path, `const SRC = ${src};\nconst ARGS = process.argv.slice(2);\n${text}`, { mode: 0o644 });
  const child = spawn(process.execPath, ["--disable-warning=ExperimentalWarning", path, ...args], {
    stdio: ["ignore", "pipe", "pipe"],
    ...(uid === undefined ? {} : { uid, gid: uid }),
  });
  let stdout = "";
  let stderr = "";
  child.stdout.on("data", (data: Buffer) => (stdout += data.toString()));
  child.stderr.on("data", (data: Buffer) => (stderr += data.toString()));
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code, signal) => {
      rmSync(path, { force: true });
      resolve({ code, signal, stdout, stderr });
    });
  });
}
