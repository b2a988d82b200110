// Copies of a store, made and put in its place while workers use it, as an operator does who forgot to stop them. The engine is not notified.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, linkSync, renameSync, rmSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { join } from "node:path";
import { text } from "node:stream/consumers";

export interface Copies {
  /** Copies the store as it is at one moment. */
  take(): Promise<void>;
  /** Puts the latest copy in the place of the store. */
  putBack(): Promise<void>;
}

/** How long others may wait for the copy to be made, and for a moment in which no process writes. */
const BUSY_MS = 10_000;
/** A restore that waits for workers that wait for it is ended by the server: then it is tried again. */
const TRIES = 10;

/** The old file is moved aside with its log, and a process that has it open goes on with it. */
export function copiesOfFile(file: string, folder: string): Copies {
  const copy = join(folder, "copy.db");
  let replaced = 0;
  return {
    async take() {
      rmSync(copy, { force: true });
      const db = new DatabaseSync(file, { timeout: BUSY_MS });
      try {
        db.prepare("VACUUM INTO ?").run(copy);
      } finally {
        db.close();
      }
    },
    // The copy takes the name in one step, and no process is starting meanwhile.
    async putBack() {
      const aside = `${file}.${++replaced}`;
      linkSync(file, aside);
      for (const end of ["-wal", "-shm"])
        if (existsSync(`${file}${end}`)) renameSync(`${file}${end}`, `${aside}${end}`);
      renameSync(copy, file);
    },
  };
}

/** By the server's own tools. `program`: where one of them is. */
export function copiesOfSchema(url: string, schema: string, folder: string, program: (name: string) => string): Copies {
  const dump = join(folder, "copy.sql");
  return {
    take: () => run(program("pg_dump"), [`--schema=${schema}`, `--file=${dump}`, `--dbname=${url}`]),
    async putBack() {
      const quietly = ["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", `--dbname=${url}`];
      const replace = ["--single-transaction", `--command=DROP SCHEMA "${schema}" CASCADE`, `--file=${dump}`];
      for (let tries = 1; ; tries++) {
        try {
          return await run(program("psql"), [...quietly, ...replace]);
        } catch (thrown) {
          if (tries >= TRIES || !/deadlock detected/.test((thrown as Error).message)) throw thrown;
        }
      }
    },
  };
}

async function run(program: string, args: readonly string[]): Promise<void> {
  const child = spawn(program, args, {
    stdio: ["ignore", "ignore", "pipe"],
    env: { ...process.env, PGOPTIONS: "-c client_min_messages=warning" },
  });
  const [said, [code]] = await Promise.all([text(child.stderr), once(child, "exit") as Promise<[number | null]>]);
  if (code !== 0) throw new Error(`${program} ended with exit code ${code}:\n${said}`);
}
