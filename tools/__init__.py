"""What keeps the project in order: dependencies, their licences, known vulnerabilities."""
