// The socket's place: it appears at its path when it is served, replaces a stale one in one step, and goes only if it is still the one that
// was made here.
'use strict';

const fs = require('node:fs');
const net = require('node:net');
const path = require('node:path');

// Place is where a plugin makes its socket. bind() is given a path to listen on, which is not the final one.
class Place {
  constructor(socket) {
    this.socket = path.resolve(socket);
    this.identity = null;
  }

  async take(bind, mode = 0o600) {
    const hidden = fs.mkdtempSync(path.join(path.dirname(this.socket), '.' + path.basename(this.socket).slice(0, 16)));
    try {
      const made = path.join(hidden, 's');
      await bind(made);
      fs.chmodSync(made, mode);
      await refuseLiving(this.socket);
      this.identity = identify(made);
      fs.renameSync(made, this.socket);
    } finally {
      fs.rmSync(hidden, { recursive: true, force: true });
    }
  }

  leave() {
    if (this.identity !== null && identify(this.socket) === this.identity) {
      fs.rmSync(this.socket, { force: true });
    }
    this.identity = null;
  }
}

// identify names the file at a path; null if there is none.
function identify(file) {
  const stat = fs.lstatSync(file, { bigint: true, throwIfNoEntry: false });
  return stat === undefined ? null : `${stat.dev}:${stat.ino}`;
}

// refuseLiving throws if anybody serves at a path, or if what is there is no socket.
async function refuseLiving(socket) {
  const stat = fs.lstatSync(socket, { throwIfNoEntry: false });
  if (stat === undefined) {
    return;
  }
  if (!stat.isSocket()) {
    throw new Error(`${socket} is there and is no socket; choose another path`);
  }
  const code = await connect(socket);
  if (code !== 'ECONNREFUSED' && code !== 'ENOENT') {
    throw new Error(`${socket} is served by somebody, or it cannot be told (${code}); stop that first, or choose another path`);
  }
}

// connect returns the error code of a connect, or 'connected'.
function connect(socket) {
  return new Promise((resolve) => {
    const connection = net.connect(socket);
    connection.once('connect', () => {
      connection.destroy();
      resolve('connected');
    });
    connection.once('error', (error) => resolve(error.code));
  });
}

module.exports = { Place };
