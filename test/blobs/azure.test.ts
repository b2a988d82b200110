// Azure: the port held to its specification on a real server (azurite, a separate process), and what the adapter says when it refuses.
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { BlobServiceClient, ContainerSASPermissions } from "@azure/storage-blob";
import { freePort } from "../../proof/servers/free-port.ts";
import { azure } from "../../src/blobs.ts";
import { ErrorCode } from "../../src/index.ts";
import { blobConformance } from "../../src/testing/index.ts";
import { says } from "../engine/engines.ts";
import { untilTrue } from "../support/processes.ts";

// The account and the key that every azurite has, and that are not secret.
const account = "devstoreaccount1";
const key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
const folder = mkdtempSync(join(tmpdir(), "outlive-azurite-"));
let server: ChildProcess;
let port: number;
let service: BlobServiceClient;
let containers = 0;

const connection = (accountKey = key): string =>
  `DefaultEndpointsProtocol=http;AccountName=${account};AccountKey=${accountKey};BlobEndpoint=http://127.0.0.1:${port}/${account};`;

before(async () => {
  port = await freePort();
  const main = fileURLToPath(new URL("../../node_modules/azurite/dist/src/blob/main.js", import.meta.url));
  const options = ["--blobHost", "127.0.0.1", "--blobPort", String(port), "-l", folder];
  const flags = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"];
  server = spawn(process.execPath, [main, ...options, ...flags], { stdio: "ignore" });
  service = BlobServiceClient.fromConnectionString(connection());
  await untilTrue(
    () =>
      fetch(`http://127.0.0.1:${port}/`).then(
        () => true,
        () => false,
      ),
    (listens) => listens,
    "azurite listens",
  );
});
after(() => {
  server.kill("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
});

async function newContainer(): Promise<string> {
  const container = `container-${++containers}`;
  await service.createContainer(container);
  return container;
}

blobConformance("Azure", async () => {
  const container = await newContainer();
  return {
    open: () => azure({ connectionString: connection(), container, prefix: "app/blobs/" }),
    cleanup: async () => void (await service.deleteContainer(container)),
  };
});

test("a client of the program's own is used", async () => {
  const client = service.getContainerClient(await newContainer());
  const blobs = azure({ client });
  assert.deepEqual((await blobs.check()).facts, { account, container: client.containerName });
});

test("a container that does not exist is named by every verb", async () => {
  const blobs = azure({ connectionString: connection(), container: "no-such-container" });
  const missing = says(ErrorCode.blobsMissing, "no-such-container", "Create the container");
  await assert.rejects(blobs.put("k", Buffer.from("x")), missing);
  await assert.rejects(Array.fromAsync(blobs.get("k")), missing);
  await assert.rejects(blobs.head("k"), missing);
  await assert.rejects(Array.fromAsync(blobs.list()), missing);
  await assert.rejects(blobs.check(), missing);
});

test("a wrong key is refused by the server, and is not in the error", async () => {
  const wrong = Buffer.from("a wrong key of the right form").toString("base64");
  const blobs = azure({ connectionString: connection(wrong), container: await newContainer() });
  await assert.rejects(blobs.put("k", Buffer.from("x")), (thrown) => {
    assert.ok(!(thrown as Error).message.includes(wrong));
    return says(ErrorCode.blobsCredentials, "Check the account key")(thrown);
  });
});

test("a signature that allows only reading may not write", async () => {
  const client = service.getContainerClient(await newContainer());
  await azure({ client }).put("k", Buffer.from("x"));
  const expiresOn = new Date(Date.now() + 600_000);
  const url = await client.generateSasUrl({ permissions: ContainerSASPermissions.parse("r"), expiresOn });
  const blobs = azure({ url });
  assert.equal((await blobs.head("k"))?.size, 1);
  await assert.rejects(blobs.put("k2", Buffer.from("x")), (thrown) => {
    assert.ok(!(thrown as Error).message.includes("sig="));
    return says(ErrorCode.blobsForbidden, client.containerName)(thrown);
  });
});

test("options that can't work are refused, and never repeat a secret", async () => {
  assert.throws(() => azure({}), says(ErrorCode.optionInvalid));
  assert.throws(() => azure({ connectionString: "x" }), says(ErrorCode.optionInvalid));
  assert.throws(
    () => azure({ url: "https://a/b", container: "c", connectionString: "x" }),
    says(ErrorCode.optionInvalid),
  );
  const blobs = azure({ connectionString: "AccountKey=hidden", container: "ccc" });
  await assert.rejects(blobs.head("k"), (thrown) => {
    assert.ok(!(thrown as Error).message.includes("hidden"));
    return says(ErrorCode.optionInvalid)(thrown);
  });
});
