#!/bin/sh
# Creates the role and the database of the archive. The role is an ordinary one, so that row-level security applies.
set -eu
psql --username postgres --dbname postgres --set=ON_ERROR_STOP=1 --set=password="$POSTGRES_PASSWORD" <<'SQL'
CREATE ROLE foldline LOGIN PASSWORD :'password';
CREATE DATABASE foldline OWNER foldline;
SQL
