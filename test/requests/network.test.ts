// Requests in a network of their own (a namespace, so nothing leaks and port 53 is free), and against an answer that unpacks to a gigabyte.
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const program = (name: string): string => fileURLToPath(new URL(name, import.meta.url));
const NETWORK = `ip link set lo up && for a in 93.184.215.14 10.0.0.1 169.254.169.254; do ip addr add $a/32 dev lo; done &&
echo 'nameserver 127.0.0.1' > "$1" && mount --bind "$1" /etc/resolv.conf && shift && exec "$@"`;
const canUnshare = spawnSync("unshare", ["-m", "-n", "ip", "link", "set", "lo", "up"]).status === 0;

test(
  "names and literals of private addresses reach nothing, also by redirect and by rebinding",
  {
    skip: canUnshare ? false : "this system does not allow a network namespace",
  },
  (t) => {
    const folder = mkdtempSync(join(tmpdir(), "outlive-dns-"));
    t.after(() => rmSync(folder, { recursive: true, force: true }));
    const node = [process.execPath, "--disable-warning=ExperimentalWarning", program("./inside-namespace.ts")];
    const said = execFileSync(
      "unshare",
      ["-m", "-n", "sh", "-c", NETWORK, "sh", join(folder, "resolv.conf"), ...node],
      {
        encoding: "utf8",
        stdio: ["ignore", "pipe", "inherit"],
        timeout: 120_000,
      },
    );
    const { came, hits, reboundAsked } = JSON.parse(said) as {
      came: Record<string, string>;
      hits: Record<string, number>;
      reboundAsked: number;
    };
    const reached = "from 93.184.215.14";
    assert.deepEqual(came, {
      "http://good.example/": reached,
      "http://private.example/": "refused",
      "http://metadata.example/": "refused",
      "http://mixed.example/": reached,
      "http://rebound.example/": reached,
      "http://nothing.example/": "network",
      "http://93.184.215.14/": reached,
      "http://10.0.0.1/": "refused",
      "http://[::ffff:10.0.0.1]/": "refused",
      "http://169.254.169.254/latest/meta-data/": "refused",
      "http://127.0.0.1/": "refused",
      "http://good.example/to-private": "refused",
      "http://good.example/to-metadata": "refused",
      "http://rebound.example/later": "refused",
    });
    assert.deepEqual(Object.keys(hits), ["93.184.215.14"], "no private address had a connection");
    assert.equal(reboundAsked, 2);
  },
);

test("a gigabyte in a gzip of a megabyte ends at the limit, and the process grows by 16 MB at most", () => {
  const said = execFileSync(
    process.execPath,
    ["--expose-gc", "--disable-warning=ExperimentalWarning", program("./bomb.ts")],
    { encoding: "utf8", timeout: 120_000 },
  );
  const { is, message, grownBytes, limitBytes } = JSON.parse(said) as {
    is: string;
    message: string;
    grownBytes: number;
    limitBytes: number;
  };
  assert.equal(is, "too-large");
  assert.match(message, /once it is decoded/);
  const most = limitBytes + (16 << 20);
  assert.ok(grownBytes <= most, `RSS grew by ${grownBytes} bytes, at most ${most} are allowed`);
});
