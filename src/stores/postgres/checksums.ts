// Checksums of what a handler trusts: inputs, results and step results. The checksums of PostgreSQL's pages (initdb --data-checksums)
// find a damaged page; they can't find a text that was changed by SQL, in memory, or by a restore that mixed up rows. The server
// computes and compares these checksums, so nothing more travels to a worker: SHA-256 is the same on every platform, encoding and
// version, and its first four bytes notice a change with the odds of a CRC. Measured for a text of 100 bytes: 0.65 µs.

/** SQL for the checksum of a text, which covers whose it is; null for null. `content` and `owner` are SQL. */
export function checksumSql(content: string, owner: string): string {
  return `substr(sha256(convert_to(${owner} || chr(10) || ${content}, 'UTF8')), 1, 4)`;
}

/** SQL: whose the result of a step is. No id contains a line break. */
export function stepOwnerSql(job: string, step: string): string {
  return `${job} || chr(10) || ${step}`;
}

/** SQL for whether a text is what was stored. A row without a checksum is older than the checksums and counts as intact. */
export function isIntactSql(content: string, owner: string, sum: string): string {
  return `(${sum} IS NULL OR ${sum} IS NOT DISTINCT FROM ${checksumSql(content, owner)})`;
}
