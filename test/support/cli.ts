// The command line as a user runs it: a separate process, its exit code and both its streams.
import assert from "node:assert/strict";
import { type ChildProcessByStdio, spawn } from "node:child_process";
import type { Readable, Writable } from "node:stream";
import type { TestContext } from "node:test";
import { fileURLToPath } from "node:url";

export interface Said {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export const BIN = fileURLToPath(new URL("../../src/cli/bin.ts", import.meta.url));
/** What the call begins with, before the command. */
export const NODE = [process.execPath, "--disable-warning=ExperimentalWarning", BIN] as const;

/** Nothing of the machine's own settings reaches the CLI, except where compiled code is kept for the whole test run. */
export function cleanEnv(given: Readonly<Record<string, string>> = {}): Record<string, string> {
  const env: Record<string, string> = { ...given };
  for (const name of ["PATH", "HOME", "TMPDIR", "TZ", "NODE_COMPILE_CACHE"]) {
    const value = process.env[name];
    if (value !== undefined) env[name] ??= value;
  }
  return env;
}

export interface CliOptions {
  readonly store?: string;
  readonly cwd?: string;
  readonly input?: string;
  readonly env?: Readonly<Record<string, string>>;
}

export type CliProcess = ChildProcessByStdio<Writable, Readable, Readable>;

/** Starts it and leaves it running; ended with its test. */
export function startCli(t: TestContext, args: readonly string[], options: CliOptions = {}): CliProcess {
  const { store, cwd, env } = options;
  const [node, ...first] = NODE;
  const child = spawn(node, [...first, ...args], {
    stdio: ["pipe", "pipe", "pipe"],
    env: cleanEnv({ ...env, ...(store !== undefined && { OUTLIVE_STORE: store }) }),
    ...(cwd !== undefined && { cwd }),
  });
  t.after(() => void child.kill("SIGKILL"));
  return child;
}

export async function cli(t: TestContext, args: readonly string[], options: CliOptions = {}): Promise<Said> {
  const child = startCli(t, args, options);
  child.stdin.on("error", () => {}).end(options.input ?? "");
  return ended(child);
}

export function ended(child: CliProcess): Promise<Said> {
  let stdout = "";
  let stderr = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => (stdout += text));
  child.stderr.setEncoding("utf8").on("data", (text: string) => (stderr += text));
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code) => resolve({ code, stdout, stderr }));
  });
}

/** The CLI on one store: `run` for its text, `json` for the one document that `--json` prints. */
export function cliOn(
  t: TestContext,
  store: string,
): {
  readonly run: (...args: readonly string[]) => Promise<Said>;
  readonly json: (...args: readonly string[]) => Promise<{ code: number | null; value: never }>;
} {
  return {
    run: (...args) => cli(t, args, { store }),
    json: async (...args) => {
      const { code, stdout, stderr } = await cli(t, [...args, "--json"], { store });
      assert.ok(
        stdout.endsWith("\n") && stdout.indexOf("\n") === stdout.length - 1,
        `one document: ${stdout}${stderr}`,
      );
      return { code, value: JSON.parse(stdout) as never };
    },
  };
}

/** The form of a value: names of types in the place of values. A list has the form of its first member. */
export function shapeOf(value: unknown): unknown {
  if (value === null) return "null";
  if (Array.isArray(value)) return value.length === 0 ? [] : [shapeOf(value[0])];
  if (typeof value !== "object") return typeof value;
  return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, shapeOf(member)]));
}
