"""TrainingQueues: conversion, GPU-hours and money used, and their gauges."""
