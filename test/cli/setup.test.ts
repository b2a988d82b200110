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

test("check prints every value and where it came from, including those of work", async (t) => {
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
      ["work.semiSpace", 4, "default"],
      ["work.http", "off", "default"],
      ["work.log", "pretty", "default"],
      ["work.middleware", "none", "default"],
    ],
  );
  const text = (await cli(t, ["check"], { cwd, env })).stdout;
  assert.match(text, /^work\.concurrency +mail=5,render=2 +outlive\.yaml:3$/m);
});

test("blobs is a setting: a folder of a file or a variable, or a store of outlive.config.ts, and check tries it", async (t) => {
  const cwd = folder(t);
  interface Checked {
    ok: boolean;
    values: { key: string; value: unknown; source: string }[];
    findings: { level: string; text: string }[];
  }
  const check = async (env: Record<string, string> = {}): Promise<Checked> =>
    JSON.parse((await cli(t, ["check", "--json"], { cwd, env })).stdout) as Checked;
  const blobsOf = ({ values, findings }: Checked): unknown[] => [
    ...values.filter(({ key }) => key === "blobs").map(({ value, source }) => [value, source]),
    ...findings.filter(({ text }) => text.startsWith("blobs: ")).map(({ level }) => level),
  ];
  assert.deepEqual(blobsOf(await check()), [["none", "default"]]);
  writeFileSync(join(cwd, "outlive.yaml"), "blobs: ./files\n");
  assert.deepEqual(blobsOf(await check()), [["./files", "outlive.yaml:1"], "ok"]);
  writeFileSync(join(cwd, "not-a-folder"), "");
  const broken = await check({ OUTLIVE_BLOBS: "./not-a-folder" });
  assert.deepEqual([broken.ok, ...blobsOf(broken)], [false, ["./not-a-folder", "OUTLIVE_BLOBS"], "error"]);
  rmSync(join(cwd, "outlive.yaml"));
  const blobs = new URL("../../src/blobs.ts", import.meta.url).href;
  const config = `import { fileSystem } from "${blobs}";\nexport default { blobs: fileSystem({ folder: "made-by-code" }) };\n`;
  writeFileSync(join(cwd, "outlive.config.mjs"), config);
  const [shown, level] = blobsOf(await check()) as [[string, string], string];
  assert.match(shown[0], /made-by-code/);
  assert.deepEqual([shown[1], level], ["outlive.config.mjs:2", "ok"]);
  writeFileSync(join(cwd, "outlive.config.mjs"), 'export default { blobs: "s3://bucket" };\n');
  const refused = await cli(t, ["check"], { cwd });
  assert.equal(refused.code, 2);
  assert.match(refused.stderr, /outlive\.config\.mjs:1: blobs is "s3:\/\/bucket"\.\n\s+Use a folder/);
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

test("init in a folder that can't be written to says so, without a stack", async (t) => {
  const cwd = folder(t);
  // A file where the folder of the first job goes: also root can't write there.
  writeFileSync(join(cwd, "jobs"), "");
  const { code, stderr } = await cli(t, ["init"], { cwd });
  assert.equal(code, 1);
  assert.match(
    stderr,
    /^outlive: init can't write to \S+: .*\n {2}Grant this user write permission for the folder, .*\n$/,
  );
});
