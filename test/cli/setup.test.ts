// `init`, `check` and `completion`: what they write, and the forms of their JSON.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { cli, shapeOf } from "../support/cli.ts";
import { CHECK, COMPLETION, INIT } from "./shapes.ts";

function folder(t: TestContext): string {
  const path = mkdtempSync(join(tmpdir(), "outlive-setup-"));
  t.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

test("init writes a configuration, a job and .gitignore; a second one writes nothing", async (t) => {
  const cwd = folder(t);
  writeFileSync(join(cwd, "package.json"), '{"type":"module"}');
  const first = await cli(t, ["init", "--json"], { cwd });
  const value = JSON.parse(first.stdout) as { written: string[] };
  assert.deepEqual(shapeOf(value), INIT);
  assert.deepEqual(value.written, ["outlive.config.ts", "jobs/hello.ts", ".gitignore"]);
  const second = JSON.parse((await cli(t, ["init", "--json"], { cwd })).stdout) as {
    written: string[];
    kept: string[];
  };
  assert.deepEqual([second.written, second.kept], [[], ["outlive.config.ts", "jobs/hello.ts"]]);
});

test("check tells every value and where it came from, also those of work", async (t) => {
  const cwd = folder(t);
  writeFileSync(join(cwd, "outlive.yaml"), "work:\n  processes: 3\n  concurrency: { mail: 5, render: 2 }\n");
  const env = { OUTLIVE_WORK_GRACE: "10s" };
  const { code, stdout } = await cli(t, ["check", "--json"], { cwd, env });
  assert.equal(code, 0);
  const value = JSON.parse(stdout) as { values: { key: string; value: unknown; source: string }[] };
  assert.deepEqual(shapeOf(value), CHECK);
  assert.deepEqual(
    value.values.filter(({ key }) => key.startsWith("work.")).map((one) => [one.key, one.value, one.source]),
    [
      ["work.processes", 3, "outlive.yaml:2"],
      ["work.concurrency", { mail: 5, render: 2 }, "outlive.yaml:3"],
      ["work.grace", "10s", "OUTLIVE_WORK_GRACE"],
      ["work.http", "off", "default"],
      ["work.log", "pretty", "default"],
    ],
  );
  const text = (await cli(t, ["check"], { cwd, env })).stdout;
  assert.match(text, /^work\.concurrency +mail=5,render=2 +outlive\.yaml:3$/m);
});

test("completion writes a script for each shell, and refuses others", async (t) => {
  for (const shell of ["bash", "zsh", "fish"]) {
    const { code, stdout } = await cli(t, ["completion", shell, "--json"]);
    assert.equal(code, 0);
    const value = JSON.parse(stdout) as { shell: string; script: string };
    assert.deepEqual(shapeOf(value), COMPLETION);
    assert.equal(value.shell, shell);
    assert.match(value.script, /\bquarantine\b/);
  }
  assert.equal((await cli(t, ["completion", "powershell"])).code, 2);
});
