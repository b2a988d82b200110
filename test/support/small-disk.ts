// A disk of a test's own that it can fill: a small tmpfs, which only root may mount.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, statfsSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestContext } from "node:test";
import { type Declared, type Engine, open } from "../../src/index.ts";

export class SmallDisk {
  readonly folder = mkdtempSync(join(tmpdir(), "outlive-disk-"));
  readonly path = join(this.folder, "jobs.db");
  readonly url = `sqlite:${this.path}`;
  readonly #ballast = join(this.folder, "ballast");
  readonly #engines: Engine[] = [];

  constructor(t: TestContext, size: string) {
    const mount = spawnSync("mount", ["-t", "tmpfs", "-o", `size=${size}`, "tmpfs", this.folder], { encoding: "utf8" });
    const mounted = mount.status === 0;
    t.after(async () => {
      this.makeRoom();
      for (const engine of this.#engines) await engine.close({ grace: "0ms" }).catch(() => {});
      if (mounted) spawnSync("umount", ["-l", this.folder]);
      rmSync(this.folder, { recursive: true, force: true, maxRetries: 10 });
    });
    assert.ok(
      mounted,
      `This test fills a disk of its own and could not mount one: ${mount.error?.message ?? mount.stderr.trim()}. Run it as root (or with CAP_SYS_ADMIN) on Linux.`,
    );
  }

  async engine(jobs: readonly Declared[]): Promise<Engine> {
    const engine = await open(this.url, { jobs, logger: false });
    this.#engines.push(engine);
    return engine;
  }

  get freeBytes(): number {
    const { bavail, bsize } = statfsSync(this.folder);
    return bavail * bsize;
  }

  /** Takes all the room that is left. */
  fill(): void {
    writeFileSync(this.#ballast, Buffer.alloc(this.freeBytes));
    assert.equal(this.freeBytes, 0);
  }

  remount(how: "ro" | "rw"): void {
    const { status, stderr } = spawnSync("mount", ["-o", `remount,${how}`, this.folder], { encoding: "utf8" });
    assert.equal(status, 0, stderr);
  }

  makeRoom(): void {
    rmSync(this.#ballast, { force: true });
  }
}
