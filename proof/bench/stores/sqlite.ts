// SQLite under test: each place is a file in a folder of its own.
import { mkdirSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import type { Bench } from "../harness.ts";
import type { Filling, TestedStore } from "./tested-store.ts";

const SCHEME = "sqlite:";

export class TestedSqlite implements TestedStore {
  readonly name = "sqlite";
  /** As many as our concurrency: what one turn settles and claims. */
  readonly floorBatch = 100;
  readonly floors = { drain: "drain-floor", enqueue: "enqueue-floor" };
  readonly #root: string;
  #folders = 0;

  constructor(root: string) {
    this.#root = root;
  }

  async place(): Promise<string> {
    const folder = join(this.#root, String(this.#folders++));
    mkdirSync(folder);
    return SCHEME + join(folder, "jobs.db");
  }

  async cpuMs(): Promise<number> {
    return 0;
  }

  async drop(url: string): Promise<void> {
    rmSync(dirname(fileOf(url)), { recursive: true, force: true, maxRetries: 3 });
  }

  async fill(bench: Bench, url: string, filling: Filling, count: number): Promise<void> {
    const program = await bench.start("fill", { url });
    await bench.during([program], () => program.ask("fill", { ...filling, count }));
  }

  /** The files are in the bench's own folder, which goes as a whole. */
  destroyNow(): void {}
}

export function fileOf(url: string): string {
  return url.slice(SCHEME.length);
}
