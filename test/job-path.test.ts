// One job's way through the source stays short: `npm run job-path` lists the files that it crosses, and there may not be more of them
// unnoticed. A change that needs another file raises the number here and says why; one that needs fewer lowers it.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../", import.meta.url));
/** As measured. Waits, keys and schedules are not on the way of a job that has none. */
const MAX_FILES: Readonly<Record<string, number>> = { sqlite: 23, postgres: 23 };

interface File {
  readonly path: string;
  readonly functions: readonly string[];
}

function jobPath(...args: string[]): Promise<{ code: number | null; stdout: string; stderr: string }> {
  return new Promise((resolve, reject) => {
    const command = ["--disable-warning=ExperimentalWarning", `${root}scripts/job-path.ts`, ...args];
    const child = spawn(process.execPath, command, { stdio: ["ignore", "pipe", "pipe"] });
    let stdout = "";
    let stderr = "";
    child.stdout.on("data", (data: Buffer) => (stdout += data.toString()));
    child.stderr.on("data", (data: Buffer) => (stderr += data.toString()));
    child.on("error", reject);
    child.on("close", (code) => resolve({ code, stdout, stderr }));
  });
}

test("one job crosses no more files than it did, on each store", async (t) => {
  const { code, stdout, stderr } = await jobPath("--json");
  assert.equal(code, 0, stderr);
  const { paths } = JSON.parse(stdout) as {
    paths: readonly { store: string; count: number; files: readonly File[]; maintenanceThread: readonly File[] }[];
  };
  assert.deepEqual(
    paths.map(({ store }) => store),
    ["sqlite", "postgres"],
  );
  for (const { store, count, files } of paths) {
    const names = files.map(({ path }) => path);
    t.diagnostic(`${store}: ${count} files`);
    assert.equal(count, names.length);
    assert.deepEqual(
      names.filter((path) => !existsSync(root + path)),
      [],
    );
    for (const part of [`src/stores/${store}/`, "src/engine/", "src/job/", "src/worker/"])
      assert.ok(
        names.some((path) => path.startsWith(part)),
        `a job on ${store} crosses ${part}`,
      );
    assert.ok(files.every(({ functions }) => functions.length > 0));
    assert.ok(
      count <= MAX_FILES[store]!,
      `${count} files on ${store}, at most ${MAX_FILES[store]}:\n${names.join("\n")}`,
    );
  }
});

test("an unknown store or option is refused with the usage", async () => {
  for (const args of [["--store", "paper"], ["--speed"]]) {
    const { code, stdout, stderr } = await jobPath(...args);
    assert.deepEqual([code, stdout], [2, ""]);
    assert.match(stderr, /Usage: npm run job-path/);
  }
});
